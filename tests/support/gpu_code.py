"""Compile every kernel of lm.exact.gpu without a GPU, and print a line of JSON with what each consists of.

python -m support.gpu_code 75 90       for compute capabilities 7.5 and 9.0
"""

import collections
import json
import os
import re
import sys
import tempfile

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()  # nothing else may find what is compiled here

import lm.core.environment  # noqa: F401

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from lm.exact import gpu

ARITHMETIC = re.compile(r"^\s+(?:@!?%p\d+ )?((?:[a-z0-9]+)\.[a-z0-9.]*(?:f32|f64|f32x2|f16|bf16))\b", re.MULTILINE)
MOVES = ("ld", "st", "mov", "selp", "setp", "cvta", "shfl")
MEMORY = re.compile(r"\b((?:atom|red)\.[a-z0-9.]+)")


class NoGPU:
    """Take the place of Triton's driver for a GPU that does not exist."""

    def __init__(self, capability: int):
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def describe(kernel: JITFunction, compiled, constants: dict) -> dict:
    """Return the operations of a kernel by their names, its tile and its options."""
    code = compiled.asm["ptx"]
    operations = [name for name in ARITHMETIC.findall(code) if name.split(".")[0] not in MOVES]
    tile = [constants[name] for name in ("BM", "BN", "BK") if name in constants]
    return {
        "kernel": kernel.__name__,
        "capability": compiled.metadata.target.arch,
        "operations": dict(collections.Counter(operations)),
        "atomics": MEMORY.findall(code),
        "tile": tile,
        "threads": 32 * compiled.metadata.num_warps,
        "joins": compiled.metadata.enable_fp_fusion,
    }


def call_all() -> None:
    """Call each function so that each kernel is used, with large and small tiles."""
    x = torch.ones
    ids = torch.zeros(4, dtype=torch.int64)
    gpu.multiply(x(512, 512), x(512, 64), x(512, 64))
    gpu.multiply(x(37, 300).T.contiguous().T, x(300, 41), x(37, 41), adds=True)
    gpu.rms_norm(x(4, 64), x(64), 1e-6)
    gpu.rms_norm_gradient(x(4, 64), x(4, 64), x(64), x(4))
    gpu.gated_gelu(x(4, 64), x(4, 64))
    gpu.gated_gelu_gradient(x(4, 64), x(4, 64), x(4, 64))
    q = x(2, 32, 4, 16)
    k = x(2, 32, 2, 16)
    first = torch.zeros(2, 32, dtype=torch.int32)
    p = gpu.attention(q, k, k, first)[1]
    gpu.attention_gradient(q, q, k, k, first, p)
    p = gpu.short_attention(q, k, k, first, 16)[1]
    gpu.short_attention_gradient(q, q, k, k, first, p)
    gpu.softmax_less_targets(x(4, 48), x(0), ids)
    gpu.softmax(x(48))
    gpu.square_sums([x(48)])
    gpu.multiples(x(48), 2.0**-40, 2.0**50)
    gpu.adamw(x(48), x(48), x(48), x(48), 0.9, 0.95, 0.999, 0.01, 0.9, 1e-8)
    gpu.orthogonalize(x(2, 16, 32), (3.4445, -4.7750, 2.0315), 1)
    gpu.sum_rows_by_id(x(4, 16), ids, 3)


def main() -> None:
    run = JITFunction.run

    def compile_and_print(self, *arguments, grid, warmup, **constants):
        compiled = run(self, *arguments, grid=grid, warmup=True, **constants)
        if compiled.hash not in printed:
            print(json.dumps(describe(self, compiled, constants)), flush=True)
        printed.add(compiled.hash)

    JITFunction.run = compile_and_print
    CUDABackend.make_cubin = lambda *arguments: b""  # the instructions of a processor follow from PTX
    for capability in sys.argv[1:]:
        printed = set()
        driver.set_active(NoGPU(int(capability)))
        call_all()


if __name__ == "__main__":
    main()
