"""Tokenize in ranks: each rank reads some row groups of a split's parquet file and writes a token file of its own.

    job = plan_ranks(raw, tokenizer, text_slice, folder, num_ranks)
    for rank in job.unfinished():                     # anywhere, in any order
        tokenize_rank(job, rank)
    join_ranks(job, Path("train.bin"))

Ranks take the row groups in order and never divide one, so the ids of all ranks, joined, equal those of one process.
A finished rank is recognised by the origin in its sidecar.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from lm.core.errors import IntegrityError, NoDocument
from lm.core.files import check_hash, read_json, sha256_file, sha256_json
from lm.text.documents import TEXT, Chunk, SourceCount, Text, open_text
from lm.text.parquet import iter_batches, open_parquet
from lm.text.slices import Slice
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import Encoded, encode_here, encode_with_gigatoken
from lm.tokenizer.gigatoken_encoder import open_gigatoken
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import DTYPES, blocks_of, map_ids, sidecar_path, write_tokens

# The code and the packages that decide the ids of a text, besides the tokenizer.
CODE = (
    "lm/text/documents.py",
    "lm/text/parquet.py",
    "lm/text/rows.py",
    "lm/text/slices.py",
    "lm/tokenizer/counts.py",
    "lm/tokenizer/encoding.py",
    "lm/tokenizer/gigatoken_encoder.py",
    "lm/tokenizer/load.py",
    "lm/tokenizer/pretokenize.py",
)
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gigatoken", "pyarrow", "tiktoken", "tokenizers")


class Rank(NamedTuple):
    """The row groups that one rank reads, and the range of their characters."""

    number: int
    row_groups: range
    slice: Slice


class Placed(NamedTuple):
    """A row group, its bytes, and its characters begin … end in the split."""

    number: int
    num_bytes: int
    begin: int = 0
    end: int = 0


@dataclasses.dataclass(frozen=True)
class RankJob:
    """All or some ranks of a slice, as a datatrove step: a call with a rank's index tokenizes that rank.

    Paths are absolute, because a rank may run in another folder and on another machine with the same disk.
    """

    text: Text = dataclasses.field(repr=False)
    tokenizer: Path
    folder: Path
    ranks: list[Rank] = dataclasses.field(repr=False)

    def __call__(self, data, rank: int, world_size: int) -> None:
        tokenize_rank(self, self.ranks[rank])

    def path(self, rank: Rank) -> Path:
        return self.folder / f"rank-{rank.number:05d}.bin"

    def unfinished(self) -> list[Rank]:
        """Return the ranks whose token file is missing, incomplete or of another origin."""
        encoder = describe_encoder(load_tokenizer(self.tokenizer))
        return [rank for rank in self.ranks if not is_finished(self.path(rank), origin_of(self, rank, encoder))]


def plan_ranks(raw: Path, tokenizer: Path, text_slice: Slice, folder: Path, num_ranks: int) -> RankJob:
    """Divide a slice's row groups among at most `num_ranks` ranks of similar bytes; DataError if the split lacks it."""
    text = open_text(raw.resolve(), text_slice)
    ranks = []
    for number, group in enumerate(_groups(_place(text.path, text_slice), num_ranks)):
        begin = group[0].begin
        end = group[-1].end
        first = max(begin, text_slice.start_char)
        num_chars = None if text_slice.end_char >= end else int(text_slice.end_char) - first
        local = Slice(text_slice.split, first - begin, num_chars)
        ranks.append(Rank(number, range(group[0].number, group[-1].number + 1), local))
    return RankJob(text, tokenizer.resolve(), folder.resolve(), ranks)


def _place(path: Path, text_slice: Slice) -> list[Placed]:
    """Return the row groups with characters of the slice; `begin` and `end` stay 0 if it is the whole split."""
    metadata = open_parquet(path, TEXT).metadata
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    if text_slice.start_char == 0 and text_slice.num_chars is None:
        return [Placed(number, size) for number, size in enumerate(sizes)]
    placed = []
    position = 0
    for number, size in enumerate(sizes):
        begin = position
        for batch in iter_batches(path, [TEXT], row_groups=range(number, number + 1)):
            position += pc.sum(pc.utf8_length(batch.column(0))).as_py() or 0
        if position > text_slice.start_char:
            placed.append(Placed(number, size, begin, position))
        if position >= text_slice.end_char:
            break
    return placed


def _groups(placed: list[Placed], num_groups: int) -> list[list[Placed]]:
    """Divide the row groups, in order, into at most `num_groups` groups of about the same number of bytes."""
    sizes = np.array([group.num_bytes for group in placed], np.float64)
    middles = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    numbered = zip((middles * num_groups).astype(int), placed, strict=True)
    return [[each for _, each in group] for _, group in itertools.groupby(numbered, key=lambda pair: pair[0])]


def describe_encoder(tokenizer: Tokenizer) -> dict:
    """Return what decides a rank's ids besides its text: the tokenizer, the code and the packages."""
    code = sha256_json([sha256_file(path) for path in [*(ROOT / "src" / name for name in CODE), Path(__file__)]])
    packages = {name: next((found.version for found in distributions(name=name)), None) for name in PACKAGES}
    return {"tokenizer": tokenizer.sha256, "code": code, **packages}


def origin_of(job: RankJob, rank: Rank, encoder: dict) -> dict:
    """Return everything that a rank's token file depends on."""
    groups = [rank.row_groups.start, rank.row_groups.stop]
    return {**job.text.source, "row_groups": groups, "slice": dataclasses.asdict(rank.slice), **encoder}


def is_finished(path: Path, origin: dict) -> bool:
    """Return whether a rank's token file has its sidecar's length and this origin; join_ranks reads its bytes."""
    try:
        record = read_json(sidecar_path(path))
        is_whole = path.stat().st_size == record["tokens"] * DTYPES[record["dtype"]].itemsize
    except (IntegrityError, OSError, KeyError, TypeError):
        return False
    return is_whole and record.get("origin") == origin


def tokenize_rank(job: RankJob, rank: Rank) -> None:
    """Tokenize a rank's row groups unless that is done; raise DataError if one is damaged, by its checksums."""
    tokenizer = load_tokenizer(job.tokenizer)
    path = job.path(rank)
    origin = origin_of(job, rank, describe_encoder(tokenizer))
    if is_finished(path, origin):
        return
    path.unlink(missing_ok=True)  # an old file would not match the new sidecar

    def write(encoded: Encoded) -> None:
        counts = TextCounts()

        def describe() -> dict:
            return dataclasses.asdict(counts) | {"origin": origin}

        write_tokens(path, counts.ids_of(encoded), tokenizer.meta["dtype"], describe)

    if gigatoken := open_gigatoken(tokenizer):
        write(encode_with_gigatoken(_chunks(job, rank), gigatoken))
    else:
        write(encode_here(_chunks(job, rank), tokenizer))


def _chunks(job: RankJob, rank: Rank) -> Iterator[Chunk]:
    """Yield the rank's documents; nothing if no document of the slice begins in its row groups."""
    with contextlib.suppress(NoDocument):
        text = dataclasses.replace(job.text, slice=rank.slice)
        yield from text.chunks(rank.row_groups)


def join_ranks(job: RankJob, out: Path) -> dict:
    """Write the ids of all ranks into one token file and return its sidecar.

    Raise IntegrityError if a rank's bytes have changed since it wrote them, NoDocument if the ranks hold no id.
    """
    tokenizer = load_tokenizer(job.tokenizer)
    total = TextCounts()
    records = [(job.path(rank), read_json(sidecar_path(job.path(rank)))) for rank in job.ranks]
    if not any(record["tokens"] for _, record in records):
        lacking = f"no document of split {job.text.slice.split!r} begins in characters"
        place = f"{job.text.slice.start_char} to {job.text.slice.end_char}"
        raise NoDocument(f"sources.{job.text.source['name']}: {lacking} {place}; widen the range")
    for _, record in records:
        counts = {name: record[name] for name in vars(total)}
        sources = {name: SourceCount(*count) for name, count in counts.pop("sources").items()}
        total.add(TextCounts(**counts, sources=sources))

    def ids() -> Iterator[np.ndarray]:
        for path, record in records:
            digest = hashlib.sha256()
            for _, block in blocks_of(map_ids(path, record)) if record["tokens"] else ():
                digest.update(block.data)
                yield block
            check_hash(path, digest.hexdigest(), record["sha256"], advice="remove it, and run the same command again")

    return write_tokens(
        out, ids(), tokenizer.meta["dtype"], lambda: total.sidecar_entries(tokenizer, job.text.slice, job.text.source)
    )
