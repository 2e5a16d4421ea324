"""Say whether a device sums numbers on the grids of exact numerics without error: python gpu_exactness.py [DEVICE].

Exact numerics compute on the CPU alone. A GPU may be able to: TF32 holds the operands of TRAINING, and each partial sum
is an integer below 2²⁴. This program finds whether the GPU adds them exactly. DEVICE is cuda unless you name another.
"""

import sys

import torch

from lm.model.exact import REPORTING, TRAINING, grid


def count_differing(device: str, precision, matmul_precision: str, size: int = 512) -> int:
    """Return how many sums of products differ from those of integers, which float64 adds on the CPU without error."""
    torch.set_float32_matmul_precision(matmul_precision)
    a, b = torch.randn(size, precision.block), torch.randn(precision.block, size)
    a, b = grid(a, -1, precision.levels[0], precision), grid(b, -2, precision.levels[1], precision)
    found = (a.to(device) @ b.to(device)).cpu().double()
    return int((found != a.double() @ b.double()).sum())


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for name, precision, matmul_precision in (
        ("TRAINING in float32", TRAINING, "highest"),
        ("TRAINING in TF32", TRAINING, "high"),
        ("REPORTING in float64", REPORTING, "highest"),
    ):
        differing = count_differing(device, precision, matmul_precision)
        print(f"{device}: {name}: {'exact' if differing == 0 else f'{differing} of {512 * 512} sums differ'}")
