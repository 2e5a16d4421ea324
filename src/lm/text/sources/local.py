"""The user's own text: a file or a folder, plain or compressed, becomes a train and a validation split.

.parquet and .jsonl files have one document per row (`column`). Any other file is one document, or several
if `separator` is set. `.gz` and `.zst` files are decompressed. Bytes that are not UTF-8 and lone surrogates
become U+FFFD and are counted (in parquet files they are refused); NUL is an ordinary character. Null and
empty rows go into the split train or text, where they are counted as dropped.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import pyarrow as pa
from tqdm import tqdm

from lm.core.errors import DataError
from lm.core.params import needed
from lm.text.parquet import describe_split, iter_batches, write_documents

REPLACEMENT = "\ufffd"
MAX_REPLACED_FRACTION = 0.1
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclasses.dataclass(frozen=True)
class LocalPath:
    """The section `local` of params.yaml: the path of the text, inside or outside the repository."""

    path: str


@dataclasses.dataclass(frozen=True)
class LocalFetch:
    """Which files below local.path are read (`include`, a glob), how, and the fraction for validation."""

    kind: Literal["local"]
    include: str
    column: str
    separator: str | None
    validation_fraction: float | None

    def __post_init__(self):
        parts = PurePosixPath(self.include).parts
        is_below = parts and not {"/", ".."} & set(parts) and not any("**" in part and part != "**" for part in parts)
        needed(is_below, "include", repr(self.include), "a glob below local.path such as '**/*.txt'")
        fraction = self.validation_fraction
        in_range = fraction is None or 0 < fraction < 1
        needed(in_range, "validation_fraction", fraction, "between 0 and 1, or null for one split")
        needed(self.separator != "", "separator", "empty", "a string, or null for one document per file")


def fetch_local(fetch: LocalFetch, path: Path, folder: Path) -> dict:
    """Write the documents below `folder` in path order and return the manifest.

    With a validation_fraction the splits are train and validation: the documents whose text has the highest
    SHA-256 are for validation. So the split is the same on every machine, does not depend on file names, and
    keeps equal documents together. Without a fraction the only split is `text`, cut by the slices.
    """
    files, replaced = find_files(path, fetch.include), Counter()
    if fetch.validation_fraction is None:
        splits = ("text",)
        write_documents(folder / "text/0000.parquet", _documents(files, fetch, replaced))
    else:
        splits, threshold = ("train", "validation"), _validation_threshold(files, fetch, fetch.validation_fraction)
        train = (text for text in _documents(files, fetch, replaced) if not _validates(text, threshold))
        write_documents(folder / "train/0000.parquet", train)
        again = _documents(files, fetch, Counter())  # replaced characters were counted in the first pass
        write_documents(folder / "validation/0000.parquet", (text for text in again if _validates(text, threshold)))
    return {
        "kind": fetch.kind,
        "path": str(path),
        "input_files": len(files),
        "replaced_characters": replaced["characters"],
        "column": "text",
        "splits": {split: describe_split(folder, split, "text", [str(path)]) for split in splits},
    }


def find_files(path: Path, include: str) -> list[Path]:
    """Return the files to read in path order, without hidden ones. Raise DataError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"local.path is {path}, which does not exist; put text there or change the path")
    matching = (file for file in path.glob(include) if file.is_file())
    files = sorted(file for file in matching if not any(p.startswith(".") for p in file.relative_to(path).parts))
    if not files:
        raise DataError(f"{path}: no file matches {include!r} (sources.local.fetch.include); put text there")
    return files


def _validation_threshold(files: list[Path], fetch: LocalFetch, fraction: float) -> bytes:
    """Return the lowest digest of a validation document: the fewest documents with the wanted characters."""
    lengths = Counter()
    for text in filter(None, _documents(files, fetch, Counter())):
        lengths[_digest(text)] += len(text)
    if len(lengths) < 2:
        raise DataError(
            f"local.path: found {len(lengths)} distinct documents in {len(files)} files, needed: at least 2, one for "
            "validation; add files, or set sources.local.fetch.separator (a blank line is '\"\\n\\n\"')"
        )
    wanted_chars, num_chars = fraction * lengths.total(), 0
    *candidates, _ = sorted(lengths, reverse=True)  # the last document is always for training
    for digest in candidates:
        num_chars += lengths[digest]
        if num_chars >= wanted_chars:
            break
    return digest


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _validates(text: str | None, threshold: bytes) -> bool:
    return bool(text) and _digest(text) >= threshold


def _documents(files: list[Path], fetch: LocalFetch, replaced: Counter) -> Iterator[str | None]:
    """Yield every document, null and empty ones too; count characters replaced by U+FFFD in `replaced`."""
    for path in tqdm(files, unit=" files", desc="read", disable=None, leave=False):
        yield from read_documents(path, fetch.column, fetch.separator, replaced)


def read_documents(path: Path, column: str, separator: str | None, replaced: Counter) -> Iterator[str | None]:
    """Yield the documents of one file. Raise DataError with the file and the place if it cannot be read."""
    suffix = ([""] + [suffix for suffix in path.suffixes if suffix not in CODECS])[-1]
    if suffix == ".parquet":
        for batch in iter_batches(path, [column]):
            yield from batch.column(0).to_pylist()
    elif suffix in (".jsonl", ".ndjson"):
        with _open(path) as file:
            yield from _json_lines(path, file, column, replaced)
    else:
        with _open(path) as file:
            text = _plain_text(path, file.read(), replaced)
        yield from text.split(separator) if separator else [text]


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed by its suffix. Raise DataError if it is truncated or damaged."""
    with open(path, "rb") as file:
        if path.suffix not in CODECS:
            yield file
            return
        try:
            yield io.BufferedReader(pa.input_stream(file, compression=CODECS[path.suffix]))
        except OSError as error:
            raise DataError(f"{path}: not a whole {path.suffix} file ({error}); replace or remove it") from None


def _plain_text(path: Path, content: bytes, replaced: Counter) -> str:
    """Return the text of a file with LF line ends. Raise DataError if most of it is not text."""
    own = Counter()
    text = _decode(content, own).replace("\r\n", "\n")
    if own["characters"] > MAX_REPLACED_FRACTION * len(text):
        raise DataError(
            f"{path}: {own['characters']} of {len(text)} characters are not UTF-8; remove the file from local.path"
        )
    replaced.update(own)
    return text


def _decode(content: bytes, replaced: Counter) -> str:
    """Decode UTF-8; replace invalid bytes by U+FFFD and count them."""
    text = content.decode("utf-8", errors="replace")
    replaced["characters"] += text.count(REPLACEMENT) - content.count(REPLACEMENT.encode())
    return text


def _json_lines(path: Path, file: BinaryIO, column: str, replaced: Counter) -> Iterator[str | None]:
    """Yield the string or null in `column` of each line, which must be a JSON object."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(_decode(line, replaced).removeprefix("\ufeff"))[column]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: line {number} is not a JSON object with the key {column!r}") from None
        if not isinstance(text, str | None):
            raise DataError(f"{path}: line {number}: {column!r} is a {type(text).__name__}, not a string")
        yield text and _without_surrogates(text, replaced)


def _without_surrogates(text: str, replaced: Counter) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot, by U+FFFD and count them."""
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    replaced["characters"] += clean.count(REPLACEMENT) - text.count(REPLACEMENT)
    return clean
