"""Token files of other trainers as PyTorch datasets: windows of a .npy, samples of dump-*.pkl.

Both are maps from an index to a sample that need no state: item i is the same in any process, so 0,
1, 2 or 4 workers see the same data, and a worker receives paths, not tokens.
"""

import dataclasses
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset

from lm.errors import DataError, IntegrityError, ParamsError
from lm.formats_dumps import open_dumps, read_dumps
from lm.formats_npy import count_tokens, open_npy
from lm.windows import hash_of, permute

IGNORED = -100  # the target that torch's cross-entropy and Hugging Face models leave out
FOREIGN_PAD_TOKEN = 32014  # deepseek-coder's end of sentence: what the original script pads with
MIN_RANDOM_LENGTH = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class NpyTokensDataset(Dataset):
    """Windows (x, y), (seq_len,) int64 each, y shifted by one, of a .npy (N,) or (R, L), memory-mapped.

    Item i is the window that begins at token i·stride (stride None: seq_len); stride 1 reaches every
    window. With a `seed`, items are random: every window (stride None: 1) once in random order, then
    all in another; `length` is the virtual number of items, so choose it as long as the run.
    rows: "separate", no window crosses from one row into the next; "stream", the rows are one text.
    Padding behind the last token, if the file's sidecar tells of any, gives targets IGNORED.

    Raises DataError if no window fits, IntegrityError if the file is no whole array of integers.
    """

    path: Path | str
    seq_len: int
    stride: int | None = None
    rows: Literal["separate", "stream"] = "separate"
    seed: int | None = None
    length: int | None = None

    def __post_init__(self):
        if self.seq_len < 1 or (self.stride or 1) < 1 or self.rows not in ("separate", "stream"):
            raise ParamsError(
                f"seq_len {self.seq_len}, stride {self.stride}, rows {self.rows!r}: needed are at least 1, at least 1 or "
                "None, and 'separate' or 'stream'"
            )
        ids = open_npy(Path(self.path))
        num_tokens = count_tokens(Path(self.path), ids)
        ids = np.atleast_2d(ids)
        if self.rows == "stream" and len(ids) > 1:
            if not ids.flags.c_contiguous:
                raise DataError(f"{self.path}: is stored by columns; rows='stream' needs rows, as np.save writes them")
            ids = ids.reshape(1, -1)[:, :num_tokens]
        _, row_length = ids.shape
        if row_length <= self.seq_len:
            raise DataError(
                f"{self.path}: {row_length} tokens in a row, one window of seq_len {self.seq_len} needs {self.seq_len + 1}"
            )
        windows = np.lib.stride_tricks.sliding_window_view(ids, self.seq_len + 1, axis=1)[:, :: self._stride]
        # The last row counts the windows in which a token, and not padding alone, is a target.
        last = min(windows.shape[1], -(-(num_tokens - (len(ids) - 1) * row_length - 1) // self._stride))
        self.__dict__.update(_windows=windows, _num_tokens=num_tokens, _row_length=row_length)
        self.__dict__.update(num_windows=(len(ids) - 1) * windows.shape[1] + last)

    def __reduce__(self):
        return type(self), dataclasses.astuple(self)  # a worker maps the file itself
