"""Compare the kernels of lm.exact.gpu with the definition; print a line of JSON for each case.

python -m support.gpu_cases          in Triton's interpreter
python -m support.gpu_cases cuda     on a GPU
"""

import functools
import json
import os
import sys

if __name__ == "__main__" and sys.argv[1:] != ["cuda"]:
    import support.triton_interpreter  # noqa: F401 - before the kernels

import lm.core.environment  # noqa: F401

import torch
import triton
import triton.language as tl

from lm.exact.gpu import kernels as gpu
from lm.exact.gpu import softmax
from lm.exact.gpu.attention import last_query
from lm.exact.gpu.launch import launch
from lm.exact.gpu.loss import empty_logits
from lm.exact.gpu.products import multiply_by_chains
from support.exact_cases import CASES as OF_ALL_KERNELS
from support.exact_cases import add_case, definition, multiply, num_differences

CASES = dict(OF_ALL_KERNELS)
case = functools.partial(add_case, CASES)


@case
def product_by_chains(kernels, numbers):
    """A GPU computes products of few results by all chains at once."""
    a = numbers.cancelling(3, 1280)
    b = numbers.normal(1280, 5)
    out = numbers.normal(3, 5)
    if kernels is definition:
        yield multiply(kernels, a, b)
        yield multiply(kernels, a, b, out)
    else:
        yield multiply_by_chains(a, b, torch.empty_like(out), False)
        yield multiply_by_chains(a, b, out.clone(), True)


@case
def product_into_padded_rows(kernels, numbers):
    """A GPU pads rows of logits; of two chains, which it would compute at once if they were not padded."""
    a = numbers.normal(20, 512)
    b = numbers.normal(512, 37)
    head = numbers.normal(37, 24)
    logits = numbers.normal(20, 37) if kernels is definition else empty_logits(a, 20, 37)
    kernels.multiply(a, kernels.pack(b), logits)
    yield logits
    yield multiply(kernels, logits, head)


@triton.jit
def last_query_kernel(first, positions, out, T):
    number = tl.program_id(0)
    tl.store(out + number, last_query(first, tl.load(positions + number), T, 1024))


@case
def last_queries(kernels, numbers):
    """Of 1,100 queries, which are more than a block of them; each sees itself and the five before it."""
    T = 1100
    device = numbers.device
    positions = torch.tensor([0, 500, 1021, 1050, 1099], dtype=torch.int32, device=device)
    out = (positions.long() + 6).clamp(max=T)
    if kernels is not definition:
        first = (torch.arange(T, dtype=torch.int32, device=device) - 5).clamp(min=0)
        launch(last_query_kernel, (len(positions),), first, positions, out.zero_(), T)
    yield out


def main() -> None:
    device = "cuda" if sys.argv[1:] == ["cuda"] else "cpu"
    if device == "cpu":
        softmax.SCORE_ROWS = 32  # the interpreter takes as long for a program of many rows as for one of few
    for name, results in CASES.items():
        expected = results(definition, "cpu")
        found = results(gpu, device)
        differences = [num_differences(ours, theirs) for ours, theirs in zip(expected, found, strict=True)]
        print(json.dumps({"case": name, "differences": differences}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("LM_THREADS", "2")
    main()
