"""Documents in parquet: written with page checksums, described and checked when read back.

Text of our own is stored uncompressed and without dictionaries, so that its bytes depend on the
documents and on pyarrow's version alone and not on a compressor's build.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm.core.errors import DataError
from lm.core.files import sha256_file

# A row group is read whole, so these bound memory; small groups and batches cost time for each of them.
GROUP_CHARS, ROW_CHARS = 4_000_000, 100  # the characters of a group; so many more are counted for each row
BATCH_BYTES, MAX_BATCH_ROWS = 1 << 21, 8192


def write_documents(
    path: Path, texts: Iterable[str], column: str = "text", surprisal_bits: Iterable[float] | None = None
) -> None:
    """Write one document a row, in order, into a new parquet file.

    `surprisal_bits`, where the source knows it, is a second column: each document's information.
    """
    fields = [(column, pa.string())]
    if surprisal_bits is not None:
        fields.append(("surprisal_bits", pa.float64()))
    schema = pa.schema(fields)
    rows = zip(texts, repeat(None) if surprisal_bits is None else surprisal_bits, strict=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with pq.ParquetWriter(path, schema, write_page_checksum=True, **options) as writer:
        for group in _row_groups(rows):
            columns = list(zip(*group, strict=True))[: len(schema)]
            writer.write_table(pa.table([list(values) for values in columns], schema=schema))


def _row_groups(rows: Iterable[tuple]) -> Iterator[list[tuple]]:
    """Cut rows, each with its text first, into groups of about GROUP_CHARS characters."""
    group, num_chars = [], 0
    for row in rows:
        group.append(row)
        num_chars += len(row[0] or "") + ROW_CHARS
        if num_chars >= GROUP_CHARS:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


def split_files(folder: Path, split: str) -> list[Path]:
    """The parquet files of one split in their order."""
    return sorted((folder / split).glob("*.parquet"))


def open_parquet(path: Path, column: str, name: str | None = None) -> pq.ParquetFile:
    """Open a parquet file that has a string column `column`; page checksums are verified on reading.

    Raises DataError under `name`, where the path means nothing to a person.
    """
    name = name or str(path)
    try:
        file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{name}: not a whole parquet file ({reason}); replace it or leave it out") from None
    schema = file.schema_arrow
    if column not in schema.names:
        raise DataError(f"{name}: has no column {column!r}; its columns are {', '.join(schema.names)}")
    if not (pa.types.is_string(schema.field(column).type) or pa.types.is_large_string(schema.field(column).type)):
        raise DataError(f"{name}: column {column!r} holds {schema.field(column).type}, not strings")
    return file


def read_row_group(name: Path | str, file: pq.ParquetFile, group: int, columns: list[str]) -> Iterable[pa.RecordBatch]:
    """Yield a row group in batches of about BATCH_BYTES; damage and invalid UTF-8 raise DataError with its place."""
    meta = file.metadata.row_group(group)
    rows = min(MAX_BATCH_ROWS, max(1, meta.num_rows * BATCH_BYTES // max(1, meta.total_byte_size)))
    try:
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{name}: row group {group} cannot be read ({reason}); replace it or leave it out") from None


def describe_split(folder: Path, split: str, column: str, names: Sequence[str] = ()) -> dict:
    """Read every document of a split once and return its entry in the manifest.

    Null and empty rows are counted as dropped; what remains is counted in documents, characters
    (code points) and UTF-8 bytes. Raises DataError where nothing remains or a file is unusable;
    `names` are what the files, in order, are called then, for `folder` may be a temporary one.
    """
    files, kept, dropped = [], {"documents": 0, "characters": 0, "utf8_bytes": 0}, {"null": 0, "empty": 0}
    paths = split_files(folder, split)
    names = names or [str(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        files.append({"path": f"{split}/{path.name}", "sha256": sha256_file(path), "bytes": path.stat().st_size})
        file = open_parquet(path, column, name)
        for group in range(file.num_row_groups):
            for batch in read_row_group(name, file, group, [column]):
                _count(batch.column(0), kept, dropped)
    if not kept["documents"]:
        raise DataError(
            f"{', '.join(names)}: split {split!r} has no document, only {dropped['null']} null and {dropped['empty']} "
            "empty rows; at least one is needed"
        )
    return {"files": files, **kept, "dropped_rows": dropped}


def _count(texts: pa.Array, kept: dict, dropped: dict) -> None:
    """Add one batch's counts to `kept` and `dropped`."""
    lengths = pc.fill_null(pc.binary_length(texts), 0)
    num_bytes = pc.sum(lengths).as_py() or 0
    num_empty = pc.sum(pc.equal(lengths, 0)).as_py() or 0
    dropped["null"] += texts.null_count
    dropped["empty"] += num_empty - texts.null_count
    kept["documents"] += len(texts) - num_empty
    kept["characters"] += pc.sum(pc.utf8_length(texts)).as_py() or 0
    kept["utf8_bytes"] += num_bytes
