"""Compare the kernels of lm.exact.gpu with the definition; print a line of JSON for each case.

python -m support.gpu_cases          in Triton's interpreter
python -m support.gpu_cases cuda     on a GPU
"""

import json
import os
import sys

if __name__ == "__main__" and sys.argv[1:] != ["cuda"]:
    import support.triton_interpreter  # noqa: F401 - before the kernels

import lm.core.environment  # noqa: F401

import torch

from lm.exact.gpu import kernels as gpu
from lm.exact.gpu import softmax
from lm.exact.gpu.products import multiply_by_chains
from support import exact_cases
from support.exact_cases import Numbers, definition, multiply, num_differences


def product_by_chains(kernels, device):
    """A GPU computes products of few results by all chains at once."""
    numbers = Numbers(3, device)
    a = numbers.cancelling(3, 1280)
    b = numbers.normal(1280, 5)
    out = numbers.normal(3, 5)
    if kernels is definition:
        return [multiply(kernels, a, b), multiply(kernels, a, b, out)]
    product = multiply_by_chains(a, b, torch.empty_like(out), False)
    added = multiply_by_chains(a, b, out.clone(), True)
    return [product, added]


CASES = exact_cases.CASES | {"product_by_chains": product_by_chains}


def main() -> None:
    device = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
    if device == "cpu":
        softmax.SCORE_ROWS = 32  # the interpreter takes as long for a program of many rows as for one of few
    for name, case in CASES.items():
        expected = case(definition, "cpu")
        found = case(gpu, device)
        differences = [num_differences(ours, theirs) for ours, theirs in zip(expected, found, strict=True)]
        print(json.dumps({"case": name, "differences": differences}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("LM_THREADS", "2")
    main()
