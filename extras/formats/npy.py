"""Read and write X.npy: ids in NumPy's format, (N,) or (R, L), any integer dtype, with a sidecar X.npy.json.

Rows may be padded after the stream's last token; the sidecar's number of tokens says where. Without a sidecar
every entry is a token.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from extras.formats.stream import BLOCK_TOKENS, Stream
from lm.core.errors import DataError, IntegrityError, UserError, names_file
from lm.core.files import atomic_write, read_json, write_json
from lm.tokens.tokenfile import DTYPES


def npy_sidecar_path(path: Path) -> Path:
    """Return train.npy.json for train.npy; train.json may be the sidecar of train.bin."""
    return path.with_name(path.name + ".json")


def open_npy(path: Path) -> np.ndarray:
    """Map a .npy read-only: (N,) or (R, L) integers. Nothing in it is ever executed.

    Raises IntegrityError for anything else and for a truncated file, DataError for an empty array.
    """
    try:
        with names_file(path):
            ids = np.lib.format.open_memmap(path, mode="r")
    except (OSError, UserError):
        raise
    except Exception as error:  # a damaged header can raise anything
        raise IntegrityError(f"{path}: not a complete .npy array of integers ({error}); write it again") from None
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
        raise IntegrityError(f"{path}: holds {ids.ndim}-D {ids.dtype}; it must hold 1-D or 2-D integers")
    size = path.stat().st_size
    expected = ids.offset + ids.nbytes
    if size != expected:
        raise IntegrityError(f"{path}: {size} bytes, its header says {expected}; write it again")
    if ids.size == 0:
        raise DataError(f"{path}: holds no token; it must hold at least one")
    return ids


def count_tokens(path: Path, ids: np.ndarray) -> int:
    """Return how many entries of an opened .npy are tokens; the padding comes after them."""
    sidecar = npy_sidecar_path(path)
    if not sidecar.exists():
        return ids.size
    num_tokens = read_json(sidecar, "write the file again, or remove this sidecar").get("tokens")
    shortest = ids.size - ids.shape[1] + 1 if ids.ndim == 2 else ids.size
    if not isinstance(num_tokens, int) or not shortest <= num_tokens <= ids.size:
        raise IntegrityError(f"{path}: shape {ids.shape}, {sidecar.name} says {num_tokens} tokens; write it again")
    return num_tokens


def npy_stream(path: Path) -> Stream:
    """Return the stream of X.npy: its rows one after the other, without the padding that a sidecar records."""
    ids = open_npy(path)
    num_tokens = count_tokens(path, ids)
    num_rows, row_length = ids.shape if ids.ndim == 2 else (ids.size, 1)

    def blocks() -> Iterator[np.ndarray]:
        rows_per_block = max(1, BLOCK_TOKENS // row_length)
        for start in range(0, num_rows, rows_per_block):
            # Map again for each block, so that blocks that were read do not stay in memory.
            rows = open_npy(path)[start : start + rows_per_block].reshape(-1, row_length)
            yield rows.reshape(-1)[: num_tokens - start * row_length]

    sidecar = npy_sidecar_path(path)
    return Stream(path, blocks, read_json(sidecar) if sidecar.exists() else None)


def write_npy(path: Path, chunks: Iterable[np.ndarray], meta: dict, row_length: int | None) -> int:
    """Write a stream, with the bytes of np.save, and its sidecar `meta`; return the padding in tokens.

    row_length None gives (N,), else (R, row_length), with the last row padded by end-of-text ids.
    """
    num_tokens = meta["tokens"]
    dtype = DTYPES[meta["dtype"]]
    padding = -num_tokens % row_length if row_length else 0
    shape = (-(-num_tokens // row_length), row_length) if row_length else (num_tokens,)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with atomic_write(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks:
            file.write(chunk.data)
        file.write(np.full(padding, meta["tokenizer"]["eot_id"], dtype).data)
        write_json(npy_sidecar_path(path), meta)
    return padding
