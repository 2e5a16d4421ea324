"""Run kernels."""

import functools
from collections.abc import Callable

import torch

NUMBERS = 1024  # per program of an elementwise kernel
ROW_NUMBERS = 4096  # in the rows that a program holds


def launch(kernel: Callable, grid: tuple[int, ...], *arguments, **constants) -> None:
    """Run a kernel on a grid of programs without joining operations; an empty grid runs nothing."""
    if min(grid) > 0:
        on_grid = kernel[grid]  # pyright: ignore[reportIndexIssue] - Triton gives kernels this operator
        on_grid(*arguments, enable_fp_fusion=False, **constants)


def cdiv(number: int, size: int) -> int:
    """Return the number of blocks of `size` items that hold `number` items."""
    return -(-number // size)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has."""
    if device.type != "cuda":
        return 1  # Triton's interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count
