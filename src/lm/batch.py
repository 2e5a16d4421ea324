"""Random windows of a token stream, as a training loop of one's own wants them.

The pipeline trains on `lm.windows.TokenWindows`, which takes every window once an epoch; this draws
with replacement.
"""

import numpy as np
import torch
from torch import Tensor

from lm.windows import gather


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
    x, y = (torch.from_numpy(part) for part in gather(data, starts, block_size))
    if torch.device(device).type == "cuda":  # from pinned memory the copy does not wait
        x, y = x.pin_memory(), y.pin_memory()
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)
