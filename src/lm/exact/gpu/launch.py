"""Run kernels."""

import functools
from collections.abc import Callable

import torch

NUMBERS = 1024  # that a program computes where each result stands for itself
ROW_NUMBERS = 4096  # that a program holds of rows


def launch(kernel: Callable, grid: tuple[int, ...], *arguments, **constants) -> None:
    """Run a kernel on a grid of programs, without joined operations; a grid of none runs nothing."""
    if min(grid) > 0:
        on_grid = kernel[grid]  # pyright: ignore[reportIndexIssue] - Triton gives kernels this operator
        on_grid(*arguments, enable_fp_fusion=False, **constants)


def cdiv(number: int, size: int) -> int:
    """Return how many blocks of a size hold a number of items."""
    return -(-number // size)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count
