"""Batches on the computing device, copied one step ahead; `get_batch` draws random ones for loops of your own."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from lm.model.accelerator import copy_to
from lm.tokens.windows import TokenWindows, read_windows


def prefetch(
    windows: TokenWindows, steps: Iterable[int], device: torch.device | str, rows: slice = slice(None)
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and targets (B, T) int64 of each step on `device`; `rows` selects rows of the batch.

    The copy of the next batch starts before a batch is yielded, so that a GPU never waits for it.
    """
    batches = (to_device(windows.buffer(step)[rows], device) for step in steps)
    ready = next(batches, None)
    while ready is not None:
        following = next(batches, None)
        yield ready
        ready = following


def to_device(buffer: np.ndarray, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return x and y (B, T) on `device` from a buffer (B, T + 1); y is x shifted by one."""
    device = torch.device(device)
    if device.type == "cpu":  # slices cost less in NumPy than in torch
        return torch.from_numpy(buffer[:, :-1]), torch.from_numpy(buffer[:, 1:])
    tensor = copy_to(torch.from_numpy(buffer), device)  # whole, because slices are not pinned
    return tensor[:, :-1], tensor[:, 1:]


def get_batch(
    data: np.ndarray, block_size: int, batch_size: int, device: torch.device | str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw inputs and targets (B, T) int64 on `device`: T = block_size, y is x shifted by one.

    data: (N,) ids of any integer dtype, also a memmap. Every window is equally likely. The generator is on the CPU.
    Raises ValueError if N < T + 1.
    """
    if len(data) <= block_size:
        raise ValueError(f"data has {len(data)} tokens, a window of {block_size} needs {block_size + 1}")
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator).numpy()
    return to_device(read_windows(data, starts, block_size + 1), device)
