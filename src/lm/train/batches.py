"""Batches on the computing device, copied one step ahead."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from lm.model.accelerator import copy_to
from lm.tokens.windows import TokenWindows


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
