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

from lm.exact.gpu import kernels as gpu
from lm.exact.order import AdamWScalars

ARITHMETIC = re.compile(r"^\s+(?:@!?%p\d+ )?((?:[a-z0-9]+)\.[a-z0-9.]*(?:f32|f64|f32x2|f16|bf16))\b", re.MULTILINE)
MOVES = ("ld", "st", "mov", "selp", "setp", "cvta", "shfl")
OFFSETS = re.compile(r"tt\.addptr .*, (?:tensor<[\dx]*)?i(\d+)>?")  # the bits of what is added to an address
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
        "offset_bits": sorted({int(bits) for bits in OFFSETS.findall(compiled.asm["ttir"])}),
        "tile": tile,
        "threads": 32 * compiled.metadata.num_warps,
        "joins": compiled.metadata.enable_fp_fusion,
    }


def call_products() -> None:
    """Use large and small tiles, both layouts, and a total."""
    x = torch.ones
    by_columns = x(300, 37).T
    gpu.multiply(x(512, 512), x(512, 64), x(512, 64))
    gpu.multiply(by_columns, x(300, 41), x(37, 41), adds=True)


def call_rows() -> None:
    x = torch.ones(4, 64)
    weight = torch.ones(64)
    r = torch.ones(4)
    gpu.rms_norm(x, weight, 1e-6)
    gpu.rms_norm_gradient(x, x, weight, r)
    gpu.gated_gelu(x, x)
    gpu.gated_gelu_gradient(x, x, x)


def call_attention() -> None:
    q = torch.ones(2, 32, 4, 16)
    k = torch.ones(2, 32, 2, 16)
    first = torch.zeros(2, 32, dtype=torch.int32)
    _, p = gpu.attention(q, k, k, first)
    gpu.attention_gradient(q, q, k, k, first, p)
    _, p = gpu.short_attention(q, k, k, first, 16)
    gpu.short_attention_gradient(q, q, k, k, first, p)


def call_losses() -> None:
    no_factors = torch.ones(0)
    targets = torch.zeros(4, dtype=torch.int64)
    gpu.softmax_less_targets(torch.ones(4, 48), no_factors, targets)
    gpu.softmax(torch.ones(48))


def call_optimizers() -> None:
    x = torch.ones(48)
    gpu.square_sums([x])
    gpu.multiples(x, 2.0**-40, 2.0**50)
    gpu.adamw(x, x, x, x, AdamWScalars(beta1=0.9, beta2=0.95, decay=0.999, size=0.01, root=0.9, eps=1e-8))
    gpu.orthogonalize(torch.ones(2, 16, 32), (3.4445, -4.7750, 2.0315), 1)
    gpu.sum_bags(torch.ones(4, 16), torch.zeros(4, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))


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
        call_products()
        call_rows()
        call_attention()
        call_losses()
        call_optimizers()


if __name__ == "__main__":
    main()
