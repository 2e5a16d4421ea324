"""Text of your own: a file or a folder, plain or compressed, into a train and a validation split.

.parquet and .jsonl files give one document a row (`column`); every other file is one document, or
several where `separator` is set. `.gz` and `.zst` are read through. Bytes that are not UTF-8 and
lone surrogates become U+FFFD and are counted (in parquet they are refused); NUL is an ordinary
character. Null and empty rows go into the split train or text, where they are counted as dropped.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import pyarrow as pa
from tqdm import tqdm

from lm.core.errors import DataError
from lm.text.parquet import describe_split, open_parquet, read_row_group, write_documents

REPLACEMENT = "\ufffd"
MAX_REPLACED_SHARE = 0.1
CODECS = {".gz": "gzip", ".zst": "zstd"}


@dataclasses.dataclass(frozen=True)
class LocalPath:
    """The section `local` of params.yaml: where the text lies, inside or outside the repository."""

    path: str


@dataclasses.dataclass(frozen=True)
class LocalFetch:
    """Which files below local.path (`include`, a glob), how rows are read, how much validates."""

    kind: Literal["local"]
    include: str
    column: str
    separator: str | None
    validation_fraction: float | None

    def __post_init__(self):
        parts = PurePosixPath(self.include).parts
        if not parts or {"/", ".."} & set(parts) or any("**" in part and part != "**" for part in parts):
            raise ValueError(f"include is {self.include!r}, needed: a glob below local.path such as '**/*.txt'")
        if self.validation_fraction is not None and not 0 < self.validation_fraction < 1:
            raise ValueError(
                f"validation_fraction is {self.validation_fraction}, needed: between 0 and 1, or null for one split"
            )
        if self.separator == "":
            raise ValueError("separator is empty, needed: a string, or null for one document a file")


def fetch_local(fetch: LocalFetch, path: Path, folder: Path) -> dict:
    """Write the documents below `folder` in path order and return the manifest.

    With a validation_fraction there are the splits train and validation: a document validates if the
    SHA-256 of its text is among the highest, so the split is the same on every machine, does not
    depend on names, and keeps equal documents together. Without one there is the split `text`, to be
    cut by start_char and num_chars.
    """
    files, replaced = find_files(path, fetch.include), {"characters": 0}
    if fetch.validation_fraction is None:
        write_documents(folder / "text" / "0000.parquet", _documents(files, fetch, replaced))
    else:
        threshold = _validation_threshold(files, fetch)
        for split, uncounted in (("train", replaced), ("validation", {"characters": 0})):
            documents = _documents(files, fetch, uncounted)
            chosen = (text for text in documents if _validates(text, threshold) == (split == "validation"))
            write_documents(folder / split / "0000.parquet", chosen)
    splits = sorted(entry.name for entry in folder.iterdir())
    return {
        "kind": fetch.kind,
        "path": str(path),
        "input_files": len(files),
        "replaced_characters": replaced["characters"],
        "column": "text",
        "splits": {split: describe_split(folder, split, "text", [str(path)]) for split in splits},
    }


def find_files(path: Path, include: str) -> list[Path]:
    """The files to read, in path order; hidden ones are left out. Raises DataError if none is found."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"local.path is {path}, which does not exist; put text there or point it elsewhere")
    found = (file for file in path.glob(include) if file.is_file())
    files = sorted(file for file in found if not any(p.startswith(".") for p in file.relative_to(path).parts))
    if not files:
        raise DataError(f"{path}: no file matches {include!r} (sources.local.fetch.include); put text there")
    return files


def _validation_threshold(files: list[Path], fetch: LocalFetch) -> bytes:
    """The digest from which on documents validate: the smallest set holding the asked share of characters."""
    lengths: dict[bytes, int] = {}
    for text in filter(None, _documents(files, fetch, {"characters": 0})):
        digest = _digest(text)
        lengths[digest] = lengths.get(digest, 0) + len(text)
    if len(lengths) < 2:
        raise DataError(
            f"local.path: found {len(lengths)} distinct documents in {len(files)} files, needed: at least 2, one to "
            "validate; add files, or set sources.local.fetch.separator (a blank line is '\"\\n\\n\"')"
        )
    wanted, ordered = fetch.validation_fraction * sum(lengths.values()), sorted(lengths, reverse=True)
    position, held = 0, lengths[ordered[0]]
    while held < wanted and position < len(ordered) - 2:
        position += 1
        held += lengths[ordered[position]]
    return ordered[position]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()


def _validates(text: str | None, threshold: bytes) -> bool:
    return bool(text) and _digest(text) >= threshold


def _documents(files: list[Path], fetch: LocalFetch, replaced: dict) -> Iterator[str | None]:
    """Yield every document, null and empty ones too; `replaced` counts characters that became U+FFFD."""
    for path in tqdm(files, unit=" files", desc="read", disable=None, leave=False):
        yield from read_documents(path, fetch.column, fetch.separator, replaced)


def read_documents(path: Path, column: str, separator: str | None, replaced: dict) -> Iterator[str | None]:
    """Yield the documents of one file by its suffix. Raises DataError naming the file and the place."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in CODECS]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".parquet":
        yield from _parquet_rows(path, column)
    elif kind in (".jsonl", ".ndjson"):
        with _open(path) as file:
            yield from _json_lines(path, file, column, replaced)
    else:
        with _open(path) as file:
            text = _plain_text(path, file.read(), replaced)
        yield from text.split(separator) if separator else [text]


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open for reading bytes, through gzip or zstandard where the suffix says so; a part of such is a DataError."""
    with open(path, "rb") as file:
        if path.suffix not in CODECS:
            yield file
            return
        try:
            yield io.BufferedReader(pa.input_stream(file, compression=CODECS[path.suffix]))
        except OSError as error:
            raise DataError(f"{path}: not a whole {path.suffix} file ({error}); replace it or leave it out") from None


def _plain_text(path: Path, content: bytes, replaced: dict) -> str:
    """A file's text with LF line ends; one that is mostly not text is refused."""
    own = {"characters": 0}
    text = _decode(content, own).replace("\r\n", "\n")
    if own["characters"] > MAX_REPLACED_SHARE * len(text):
        raise DataError(
            f"{path}: {own['characters']} of {len(text)} characters are not UTF-8; leave the file out of local.path"
        )
    replaced["characters"] += own["characters"]
    return text


def _decode(content: bytes, replaced: dict) -> str:
    """UTF-8 with U+FFFD, counted, for what is not."""
    text = content.decode("utf-8", errors="replace")
    replaced["characters"] += text.count(REPLACEMENT) - content.count(REPLACEMENT.encode())
    return text


def _json_lines(path: Path, file: BinaryIO, column: str, replaced: dict) -> Iterator[str | None]:
    """One JSON object a line; its `column` must be a string or null."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(_decode(line, replaced).removeprefix("\ufeff"))[column]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DataError(f"{path}: line {number} is no JSON object with the key {column!r}") from None
        if text is None:
            yield None
            continue
        if not isinstance(text, str):
            raise DataError(f"{path}: line {number}: {column!r} is a {type(text).__name__}, not a string")
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        replaced["characters"] += clean.count(REPLACEMENT) - text.count(REPLACEMENT)
        yield clean


def _parquet_rows(path: Path, column: str) -> Iterator[str | None]:
    file = open_parquet(path, column)
    for group in range(file.num_row_groups):
        for batch in read_row_group(path, file, group, [column]):
            yield from batch.column(0).to_pylist()
