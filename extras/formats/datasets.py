"""PyTorch datasets of other trainers' token files: windows of a .npy, samples of dump-*.pkl.

Item i depends only on the arguments and on i, so any number of workers give the same data.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm import tqdm

from extras.formats.dumps import open_dumps, read_dumps
from extras.formats.npy import count_tokens, open_npy
from lm.core.errors import DataError, ParamsError
from lm.tokens.windows import shuffled

IGNORED = -100  # the target that torch's cross-entropy and Hugging Face models ignore
MIN_RANDOM_LENGTH = 4096  # length of a short random dataset, as in the original NpyTokensDataset
DEEPSEEK_PAD_TOKEN = 32014  # the default padding of the original tokenize_data.py


class NpyTokensDataset(Dataset):
    """Windows (x, y) of a memory-mapped .npy: (seq_len,) int64 each, y is x shifted by one token.

    path: (N,) or (R, L) ids of any integer dtype; no window crosses from one row into the next.
    Without a seed, item i begins seq_len tokens after item i - 1. With a `seed`, a window begins at each token. All
    windows come once in random order, then again in another order. `length` is the number of items: make it as long
    as the run. The order depends on NumPy's version.
    If a sidecar says that the last row is padded, targets in the padding are IGNORED.

    Raises ParamsError for wrong arguments, DataError if no window fits, IntegrityError as open_npy does.
    """

    def __init__(
        self,
        path: Path | str,
        seq_len: int,
        *,
        seed: int | None = None,
        length: int | None = None,
    ):
        if length is not None and seed is None:
            raise ParamsError(f"length is {length} without a seed; only a random dataset has its own length")
        self.path = path
        self.seq_len = seq_len
        self.seed = seed
        self.length = length
        self.stride = seq_len if seed is None else 1
        ids = open_npy(Path(path))
        self.num_tokens = count_tokens(Path(path), ids)
        ids = np.atleast_2d(np.asarray(ids))
        self.row_length = ids.shape[1]
        if self.row_length <= seq_len:
            row = f"{self.row_length} tokens in a row"
            raise DataError(f"{path}: {row}, a window of seq_len {seq_len} needs {seq_len + 1}")
        self._windows = np.lib.stride_tricks.sliding_window_view(ids, seq_len + 1, axis=1)[:, :: self.stride]
        # In the last row, count only windows whose targets are not all padding.
        last_tokens = self.num_tokens - (len(ids) - 1) * self.row_length
        last_windows = min(self._windows.shape[1], -(-(last_tokens - 1) // self.stride))
        self.num_windows = (len(ids) - 1) * self._windows.shape[1] + last_windows
        if not self.num_windows:
            raise DataError(f"{path}: holds {self.num_tokens} token; a window needs 2")

    def __getstate__(self) -> dict:
        return {name: getattr(self, name) for name in ("path", "seq_len", "seed", "length")}

    def __setstate__(self, arguments: dict) -> None:
        self.__init__(**arguments)

    def __len__(self) -> int:
        if self.seed is None:
            return self.num_windows
        return self.length or max(MIN_RANDOM_LENGTH, self.num_tokens // self.seq_len)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the items of a batch; a DataLoader asks for all of them at once."""
        valid = range(len(self))
        window = np.array([valid[i] for i in indices], np.int64)
        if self.seed is not None:
            window = np.array([self._random_window(i) for i in window.tolist()], np.int64)
        row, place = np.divmod(window, self._windows.shape[1])
        windows = self._windows[row, place].astype(np.int64)
        x = windows[:, :-1]
        y = windows[:, 1:]
        target = row[:, None] * self.row_length + place[:, None] * self.stride + 1 + np.arange(self.seq_len)
        if target.max() >= self.num_tokens:
            y = np.where(target < self.num_tokens, y, IGNORED)
        return list(zip(torch.from_numpy(x), torch.from_numpy(y), strict=True))

    def _random_window(self, index: int) -> int:
        """Return the number of the window of random item `index`.

        Each pass over all windows is divided into parts, whose windows do not overlap. Only the order of one part is in
        memory at a time: 4 bytes for each seq_len tokens of the file.
        """
        number, place = divmod(index, self.num_windows)
        num_parts = min(self.num_windows, self.seq_len)
        # The parts in random order. The part of offset r has the windows r, r + num_parts, r + 2·num_parts, …
        offsets = shuffled(num_parts, self.seed, number * (num_parts + 1)).astype(np.int64)
        sizes = -(-(self.num_windows - offsets) // num_parts)
        ends = np.cumsum(sizes)
        part = int(np.searchsorted(ends, place, side="right"))
        # The windows of this part in random order.
        order = shuffled(int(sizes[part]), self.seed, number * (num_parts + 1) + 1 + part)
        place_in_part = place - int(ends[part] - sizes[part])
        return int(offsets[part]) + num_parts * int(order[place_in_part])


class PickledTrainerDataset(Dataset):
    """Samples of folders of dump-*.pkl for the Hugging Face Trainer, in the dumps' numeric order.

    ds[i]: input_ids, labels (IGNORED in the padding; the model shifts them) and attention_mask, (seq_len,)
    int64 each. Dumps are unpickled one at a time, with every import rejected, into an array of 4 bytes per token.
    `pad_token` is the padding of folders without provenance. A sample of one token has no target, so it is left out.

    Raises IntegrityError if dumps and meta file disagree or a dump is not a list of samples, DataError if
    the samples differ in length.
    """

    def __init__(self, folders: Iterable[Path | str] | Path | str, pad_token: int = DEEPSEEK_PAD_TOKEN):
        folders = [folders] if isinstance(folders, str | Path) else list(folders)
        parts: list[np.ndarray] = []  # (n, 1 + seq_len): the number of tokens without padding, then the sample
        for folder in (open_dumps(Path(folder)) for folder in folders):
            dumps = read_dumps(folder, pad_token)
            for rows, padding in tqdm(dumps, f"load {folder.path}", len(folder.dumps), unit="dump", disable=None):
                if parts and rows.shape[1] != parts[0].shape[1] - 1:
                    mixed = f"samples of {rows.shape[1]} tokens among samples of {parts[0].shape[1] - 1}"
                    raise DataError(f"{folder.path}: {mixed}; tokenize with one seq_length")
                num_real = rows.shape[1] - padding
                parts.append(np.column_stack([num_real, rows])[num_real > 1].astype(np.uint32))
        if not sum(map(len, parts)):
            raise DataError(f"{', '.join(map(str, folders)) or 'no folder'}: no sample of 2 tokens or more")
        self._rows = np.concatenate(parts)
        self.seq_len = self._rows.shape[1] - 1

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[index]
        input_ids = torch.from_numpy(row[1:].astype(np.int64))
        is_real = torch.arange(self.seq_len) < int(row[0])
        labels = input_ids.masked_fill(~is_real, IGNORED)
        return {"input_ids": input_ids, "labels": labels, "attention_mask": is_real.long()}
