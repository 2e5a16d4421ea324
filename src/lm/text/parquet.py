"""Write documents to parquet with page checksums; check and describe parquet files.

Without compression and dictionaries the bytes depend only on the documents and the version of pyarrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm.core.errors import DataError
from lm.core.files import PARQUET, sha256_file

# Row groups are read whole, so these sizes bound memory; each group and batch costs some time.
GROUP_CHARS, ROW_CHARS = 4_000_000, 100  # characters per group; each row counts ROW_CHARS more
BATCH_BYTES = 1 << 21
MAX_BATCH_ROWS = 8192
STRINGS = (pa.string(), pa.large_string())


def write_documents(path: Path, texts: Iterable[str | None], column: str = "text") -> None:
    """Write the documents, one per row, to a new parquet file."""
    schema = pa.schema([(column, pa.string())])
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False, **PARQUET) as writer:
        for group in _row_groups(texts):
            writer.write_table(pa.table([group], schema=schema))


def _row_groups(texts: Iterable[str | None]) -> Iterator[list[str | None]]:
    """Group texts into lists of about GROUP_CHARS characters."""
    group = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text or "") + ROW_CHARS
        if num_chars >= GROUP_CHARS:
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
    if not _holds_strings(kind := schema.field(column).type):
        usable = ", ".join(field.name for field in schema if _holds_strings(field.type))
        remedy = f"set fetch.column to one that does: {usable}" if usable else "convert it, or remove the file"
        raise DataError(f"{name}: column {column!r} holds {kind}, not strings; {remedy}")
    return file


def _holds_strings(kind: pa.DataType) -> bool:
    return (kind.value_type if pa.types.is_dictionary(kind) else kind) in (*STRINGS, pa.string_view())


def iter_batches(
    path: Path, columns: list[str], name: str | None = None, row_groups: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield a file, or some row groups of it, in batches; the first of `columns` has the text.

    Raise DataError for damage and invalid UTF-8.
    """
    file = open_parquet(path, columns[0], name)
    for group in range(file.num_row_groups) if row_groups is None else row_groups:
        meta = file.metadata.row_group(group)
        rows = min(MAX_BATCH_ROWS, max(1, meta.num_rows * BATCH_BYTES // max(1, meta.total_byte_size)))
        try:
            for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
                batch.validate(full=True)
                if batch.column(0).type not in STRINGS:
                    batch = batch.set_column(0, columns[0], batch.column(0).cast(pa.large_string()))
                yield batch
        except (pa.ArrowException, OSError) as error:
            problem = f"row group {group} cannot be read ({str(error).splitlines()[0]}); replace or remove the file"
            raise DataError(f"{name or path}: {problem}") from None


def describe_split(folder: Path, split: str, column: str, names: Sequence[str] = ()) -> dict:
    """Read a split, whose files errors call `names`; return its entry in the manifest, without null and empty rows."""
    files = []
    kept = {"documents": 0, "characters": 0, "utf8_bytes": 0}
    dropped = {"null": 0, "empty": 0}
    paths = sorted((folder / split).glob("*.parquet"))
    names = names or [str(path) for path in paths]
    for path, name in zip(paths, names, strict=True):
        files.append({"path": f"{split}/{path.name}", "sha256": sha256_file(path), "bytes": path.stat().st_size})
        for batch in iter_batches(path, [column], name):
            texts = batch.column(0)
            lengths = pc.fill_null(pc.binary_length(batch.column(0)), 0)
            num_empty = pc.sum(pc.equal(lengths, 0)).as_py() or 0  # the sum of no rows is null
            dropped["null"] += texts.null_count
            dropped["empty"] += num_empty - texts.null_count
            kept["documents"] += len(texts) - num_empty
            kept["characters"] += pc.sum(pc.utf8_length(texts)).as_py() or 0
            kept["utf8_bytes"] += pc.sum(lengths).as_py() or 0
    if not kept["documents"]:
        rows = f"only {dropped['null']} null and {dropped['empty']} empty rows"
        raise DataError(f"{', '.join(names)}: split {split!r} has no document, {rows}; at least one is needed")
    return {"files": files, **kept, "dropped_rows": dropped}
