"""Write documents to parquet with page checksums; check and describe parquet files.

Without compression and dictionaries the bytes depend only on the documents and the version of pyarrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm.core.errors import DataError
from lm.core.files import PARQUET, sha256_file

# Row groups are read whole, so these sizes bound memory; each group and batch costs some time.
GROUP_CHARS = 4_000_000  # characters per group
ROW_CHARS = 100  # added for each row
BATCH_BYTES = 1 << 21
MAX_BATCH_ROWS = 8192
STRINGS = (pa.string(), pa.large_string())
Document = TypeVar("Document", str, str | None)


def write_documents(path: Path, texts: Iterable[str | None], column: str = "text") -> None:
    """Write the documents, one per row, to a new parquet file."""
    schema = pa.schema([(column, pa.string())])
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False, **PARQUET) as writer:
        for group in in_groups(texts, GROUP_CHARS):
            writer.write_table(pa.table([group], schema=schema))


def in_groups(texts: Iterable[Document], group_chars: int) -> Iterator[list[Document]]:
    """Group texts, in order, into lists of about `group_chars` characters."""
    group = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text or "") + ROW_CHARS
        if num_chars >= group_chars:
            yield group
            group = []
            num_chars = 0
    if group:
        yield group


def open_parquet(path: Path, column: str, name: str | None = None) -> pq.ParquetFile:
    """Open a parquet file with a string column `column`. Raise DataError, with the file as `name`, if that fails."""
    name = name or str(path)
    try:
        file = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{name}: not a whole parquet file ({reason}); replace or remove it") from None
    schema = file.schema_arrow
    if column not in schema.names:
        columns = ", ".join(schema.names)
        raise DataError(f"{name}: has no column {column!r}; its columns are {columns}; set fetch.column to one of them")
    if schema.names.count(column) > 1:
        raise DataError(f"{name}: has several columns named {column!r}; rename all but one")
    data_type = schema.field(column).type
    if not _holds_strings(data_type):
        usable = [field.name for field in schema if _holds_strings(field.type)]
        remedy = "convert it, or remove the file"
        if usable:
            remedy = f"set fetch.column to one that does: {', '.join(usable)}"
        raise DataError(f"{name}: column {column!r} holds {data_type}, not strings; {remedy}")
    return file


def _holds_strings(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return data_type in (*STRINGS, pa.string_view())


def iter_batches(
    path: Path, columns: list[str], name: str | None = None, row_groups: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, or of some of its row groups; the first of `columns` has the text.

    Raise DataError for damage and invalid UTF-8.
    """
    file = open_parquet(path, columns[0], name)
    groups = range(file.num_row_groups) if row_groups is None else row_groups
    for group in groups:
        meta = file.metadata.row_group(group)
        rows_of_batch_bytes = meta.num_rows * BATCH_BYTES // max(1, meta.total_byte_size)
        batch_rows = min(max(1, rows_of_batch_bytes), MAX_BATCH_ROWS)
        try:
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=columns):
                batch.validate(full=True)
                texts = batch.column(0)
                if texts.type not in STRINGS:
                    batch = batch.set_column(0, columns[0], texts.cast(pa.large_string()))
                yield batch
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"{name or path}: row group {group} cannot be read ({reason}); replace or remove the file"
            ) from None


def describe_split(folder: Path, split: str, column: str, names: Sequence[str] = ()) -> dict:
    """Return the manifest's entry of a split, which counts no null and empty rows; errors call its files `names`."""
    files = []
    kept = {"documents": 0, "characters": 0, "utf8_bytes": 0}
    dropped = {"null": 0, "empty": 0}
    paths = sorted((folder / split).glob("*.parquet"))
    names = names or [str(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        files.append({"path": f"{split}/{path.name}", "sha256": sha256_file(path), "bytes": path.stat().st_size})
        for batch in iter_batches(path, [column], name):
            texts = batch.column(0)
            utf8_bytes = pc.fill_null(pc.binary_length(texts), 0)
            num_without_text = _sum(pc.equal(utf8_bytes, 0))
            dropped["null"] += texts.null_count
            dropped["empty"] += num_without_text - texts.null_count
            kept["documents"] += len(texts) - num_without_text
            kept["characters"] += _sum(pc.utf8_length(texts))
            kept["utf8_bytes"] += _sum(utf8_bytes)
    if not kept["documents"]:
        rows = f"only {dropped['null']} null and {dropped['empty']} empty rows"
        raise DataError(f"{', '.join(names)}: split {split!r} has no document, {rows}; at least one is needed")
    return {"files": files, **kept, "dropped_rows": dropped}


def _sum(values: pa.Array) -> int:
    """Return the sum of the values that are not null."""
    return pc.sum(values).as_py() or 0  # pyarrow returns null for the sum of no values
