"""Batches on the device that computes: copied ahead of their step, or drawn at random for a loop of one's own.

The pipeline trains on `lm.tokens.windows.TokenWindows`, which takes every window once an epoch; `get_batch`
draws with replacement.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from lm.tokens.windows import TokenWindows, read_windows


def prefetch(
    windows: TokenWindows, steps: Iterable[int], device: torch.device | str, rows: slice = slice(None)
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and targets (B, T) int64 of each step on `device`, or of some rows of it.

    The copy of the next step's begins before a step is handed out, so that a GPU, which works its
    queue while Python goes on, finds it there.
    """
    ready = None
    for step in steps:
        following = to_device(windows.buffer(step)[rows], device)
        if ready is not None:
            yield ready
        ready = following
    if ready is not None:
        yield ready


def to_device(buffer: np.ndarray, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """x and y (B, T), y being x shifted by one, on `device` out of a buffer (B, T + 1).

    The buffer crosses to CUDA in one piece and from pinned memory: the copy of a slice of it would go
    through unpinned memory, and wait.
    """
    kind = torch.device(device).type
    if kind == "cpu":  # slices cost less in NumPy than in torch
        return torch.from_numpy(buffer[:, :-1]), torch.from_numpy(buffer[:, 1:])
    tensor = torch.from_numpy(buffer)
    if kind == "cuda":
        tensor = tensor.pin_memory()
    tensor = tensor.to(device, non_blocking=True)
    return tensor[:, :-1], tensor[:, 1:]


def get_batch(
    data: np.ndarray, block_size: int, batch_size: int, device: torch.device | str, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw inputs and targets (B, T) int64 on `device`: T = block_size, y is x shifted by one.

    data: (N,) ids of any integer dtype, a memmap too; every window is equally likely, the last
    included. The generator lives on the CPU. Raises ValueError if N < T + 1.
    """
    if len(data) <= block_size:
        raise ValueError(f"data has {len(data)} tokens, a window of {block_size} needs {block_size + 1}")
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator).numpy()
    return to_device(read_windows(data, starts, block_size + 1), device)
