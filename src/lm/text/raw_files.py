"""Write the files of data/raw: the documents of a split, each with its source and its UTF-8 bytes, and the manifest."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm.core.errors import DataError
from lm.core.files import PARQUET, sha256_file, write_json
from lm.text.documents import MANIFEST, SOURCE, TEXT, UTF8_BYTES
from lm.text.parquet import GROUP_CHARS, ROW_CHARS
from lm.text.rows import Rows
from lm.text.slices import TEST

SCHEMA = pa.schema([(TEXT, pa.large_string()), (SOURCE, pa.string()), (UTF8_BYTES, pa.int64())])


def write_manifest(
    folder: Path, source: str, sources: dict, splits: dict, selection: dict, test: dict | None = None
) -> dict:
    """Write the manifest of data/raw and return it. test: the entry of the split that no stage reads."""
    manifest = {"format_version": 2, "source": source, "splits": splits, "selection": selection, "sources": sources}
    if test:
        manifest[TEST] = test
    write_json(folder / MANIFEST, manifest)
    return manifest


def write_split(folder: Path, split: str, rows: Iterable[Rows], names: list[str]) -> dict:
    """Write the rows, each with the number of its source in `names`, to a file; return its entry in the manifest."""
    path = folder / f"{split}.parquet"
    counts = {"documents": 0, "characters": 0, "utf8_bytes": 0}
    by_source = {name: {"documents": 0, "utf8_bytes": 0} for name in names}
    options = {"use_dictionary": [SOURCE], "write_statistics": False, **PARQUET}
    with pq.ParquetWriter(path, SCHEMA, **options) as writer:
        for batch, lengths in _row_groups(rows):
            # Write the texts, the names of their sources, and their sizes.
            texts = batch.column(0)
            numbers = np.from_dlpack(batch.column(1))
            sources = pa.array(names).take(pa.array(numbers))
            sizes = pc.cast(pc.binary_length(texts), pa.int64())
            writer.write_table(pa.Table.from_arrays([texts, sources, sizes], schema=SCHEMA))

            # Count them.
            num_bytes = np.from_dlpack(sizes)
            counts["documents"] += len(texts)
            counts["characters"] += int(lengths.sum())
            counts["utf8_bytes"] += int(num_bytes.sum())
            for number, name in enumerate(names):
                is_own = numbers == number
                by_source[name]["documents"] += int(np.count_nonzero(is_own))
                by_source[name]["utf8_bytes"] += int(num_bytes[is_own].sum())

    if not counts["documents"]:
        raise DataError(f"split {split!r} of {', '.join(names)} has no document; at least one is needed")
    entry = {"path": path.name, "sha256": sha256_file(path), "bytes": path.stat().st_size, **counts}
    if len(names) > 1:
        entry["sources"] = by_source
    return entry


def _row_groups(rows: Iterable[Rows]) -> Iterator[Rows]:
    """Join batches until they have about GROUP_CHARS characters, which a row group holds."""
    group = []
    num_chars = 0
    for batch, lengths in rows:
        group.append((batch, lengths))
        num_chars += int(lengths.sum()) + ROW_CHARS * len(lengths)
        if num_chars >= GROUP_CHARS:
            yield _joined(group)
            group = []
            num_chars = 0
    if group:
        yield _joined(group)


def _joined(group: list[Rows]) -> Rows:
    batches, lengths = zip(*group, strict=True)
    return pa.concat_batches(batches), np.concatenate(lengths)
