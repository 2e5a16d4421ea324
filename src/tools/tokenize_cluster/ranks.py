"""Tokenizing in ranks: each takes some of a split's parquet files and leaves a token file of its own.

    job = plan_ranks(raw, tokenizer, part, folder, chunk_chars, num_ranks)
    for part in job.unfinished():                     # anywhere, in any order
        tokenize_part(job, part)
    join_ranks(job, Path("train.bin"))

Files go to ranks in their order and are never cut, so that the ranks' ids one after the other are
those that one process writes. A rank that ended is known by what made it, which stands in its
sidecar: the files' hashes, its characters of the text, the tokenizer, the code.
"""

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from lm.core.errors import IntegrityError, NoDocument
from lm.core.files import read_json, sha256_file, sha256_json
from lm.text.documents import MANIFEST, Chunk, Slice, check_files, check_slice, describe_source, iter_chunks
from lm.text.parquet import open_parquet, read_row_group
from lm.tokenizer.encoding import Encoded, encode_here, encode_in_thread
from lm.tokenizer.engine import EngineDifference, open_engine
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokenizer.tally import Tally
from lm.tokens.tokenfile import DTYPES, Shard, join_shards, sidecar_path, write_tokens

# What decides the ids of a text, beside the tokenizer.
CODE = (
    "lm/text/documents.py", "lm/text/parquet.py", "lm/tokenizer/encoding.py", "lm/tokenizer/engine.py",
    "lm/tokenizer/load.py", "lm/tokenizer/tally.py", "tools/tokenize_cluster/ranks.py",
)  # fmt: skip
SRC = Path(__file__).resolve().parents[2]
PACKAGES = ("gigatoken", "pyarrow", "tiktoken", "tokenizers")


class Part(NamedTuple):
    """What one rank reads: entries of the manifest, and which of their characters."""

    number: int
    files: list[dict]
    slice: Slice


@dataclasses.dataclass(frozen=True)
class RankJob:
    """The ranks of a slice, or some of them, as a step of datatrove's: called for each, it tokenizes that one's part.

    Paths are absolute: a rank may run in another folder, and on another machine that has the same disk.
    """

    raw: Path
    tokenizer: Path
    folder: Path
    slice: Slice
    chunk_chars: int
    manifest: dict = dataclasses.field(repr=False)  # without its splits
    parts: list[Part] = dataclasses.field(repr=False)

    def __call__(self, data, rank: int, world_size: int) -> None:
        tokenize_part(self, self.parts[rank])

    def path(self, part: Part) -> Path:
        """Where a rank's token file is, its sidecar beside it."""
        return self.folder / f"rank-{part.number:05d}.bin"

    def unfinished(self) -> list[Part]:
        """The parts whose token file is missing, not whole, or made of or by something else."""
        maker = describe_maker(load_tokenizer(self.tokenizer))
        return [part for part in self.parts if not is_finished(self.path(part), origin_of(self, part, maker))]


def plan_ranks(raw: Path, tokenizer: Path, part: Slice, folder: Path, chunk_chars: int, num_ranks: int) -> RankJob:
    """Share the files of a slice among at most `num_ranks` ranks, about the same bytes each.

    A slice that is not a whole split needs the characters of the files before its end, which are
    counted here, in one pass over them. Raises DataError for a slice that the split does not have.
    """
    manifest = read_json(raw / MANIFEST)
    check_slice(manifest, part)
    split = manifest.pop("splits")[part.split]
    is_whole = part.start_char == 0 and part.num_chars is None
    placed = [(entry, 0, 0) for entry in split["files"]] if is_whole else _placed(raw, manifest, split["files"], part)
    parts = []
    for number, group in enumerate(_groups(placed, num_ranks)):
        begin, end = group[0][1], group[-1][2]
        num_chars = None if part.end_char >= end else int(part.end_char) - max(begin, part.start_char)
        local = Slice(part.split, max(0, part.start_char - begin), num_chars)
        parts.append(Part(number, [entry for entry, *_ in group], local))
    return RankJob(raw.resolve(), tokenizer.resolve(), folder.resolve(), part, chunk_chars, manifest, parts)


Placed = tuple[dict, int, int]  # an entry of the manifest, and its first character in the split and the one behind it


def _placed(raw: Path, manifest: dict, files: list[dict], part: Slice) -> list[Placed]:
    """The files that hold characters of a slice, where they are in the split."""
    placed, position = [], 0
    for entry in files:
        begin, position = position, position + _count_characters(raw / entry["path"], manifest["column"])
        if position > part.start_char:
            placed.append((entry, begin, position))
        if position >= part.end_char:
            break
    return placed


def _count_characters(path: Path, column: str) -> int:
    """The characters of a file's documents."""
    file = open_parquet(path, column)
    batches = (batch for group in range(file.num_row_groups) for batch in read_row_group(path, file, group, [column]))
    return sum(pc.sum(pc.utf8_length(batch.column(0))).as_py() or 0 for batch in batches)


def _groups(placed: list[Placed], num_groups: int) -> list[list[Placed]]:
    """Cut the files, in their order, into at most `num_groups` groups of about the same bytes."""
    sizes = np.array([entry["bytes"] for entry, *_ in placed], np.float64)
    middles = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    numbered = zip((middles * num_groups).astype(int), placed, strict=True)
    return [[file for _, file in group] for _, group in itertools.groupby(numbered, key=lambda pair: pair[0])]


def describe_maker(tokenizer: Tokenizer) -> dict:
    """What decides a rank's ids beside its text: the tokenizer, the code and the packages that encode."""
    code = sha256_json([sha256_file(SRC / name) for name in CODE])
    return {"tokenizer": tokenizer.sha256, "code": code, **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    """The installed version; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def origin_of(job: RankJob, part: Part, maker: dict) -> dict:
    """Everything that a rank's token file depends on."""
    return {"files": part.files, "slice": dataclasses.asdict(part.slice), "column": job.manifest["column"], **maker}


def is_finished(path: Path, origin: dict) -> bool:
    """Whether a rank's token file is there, as long as its sidecar says, and has this very origin.

    Its bytes are not read: join_ranks does that.
    """
    try:
        record = read_json(sidecar_path(path))
        is_whole = path.stat().st_size == record["tokens"] * DTYPES[record["dtype"]].itemsize
    except (IntegrityError, OSError, KeyError, TypeError):
        return False
    return is_whole and record.get("origin") == origin


def tokenize_part(job: RankJob, part: Part) -> None:
    """Tokenize a rank's part, unless that is done: with gigatoken where it serves, else with the tokenizer itself.

    Raises IntegrityError if a file is not the one that the manifest names.
    """
    tokenizer = load_tokenizer(job.tokenizer)
    path, origin = job.path(part), origin_of(job, part, describe_maker(tokenizer))
    if is_finished(path, origin):
        return
    check_files(job.raw, part.files)
    path.unlink(missing_ok=True)  # what is there belongs to another sidecar
    engine = open_engine(tokenizer)
    if engine is not None:
        try:
            return _write_part(job, part, tokenizer, origin, encode_in_thread(_chunks(job, part), engine))
        except EngineDifference as difference:
            print(f"warning: {difference}; tokenizing rank {part.number} again with tiktoken alone", file=sys.stderr)
    _write_part(job, part, tokenizer, origin, encode_here(_chunks(job, part), tokenizer))


def _write_part(job: RankJob, part: Part, tokenizer: Tokenizer, origin: dict, encoded: Encoded) -> None:
    """Write the rank's token file."""
    tally, dtype = Tally(), tokenizer.meta["dtype"]
    write_tokens(job.path(part), tally.ids_of(encoded), dtype, lambda: {**dataclasses.asdict(tally), "origin": origin})


def _chunks(job: RankJob, part: Part) -> Iterator[Chunk]:
    """The rank's documents; none where no document of the slice begins in its files."""
    no_limit = sys.maxsize  # the slice is known to be inside the split
    manifest = {**job.manifest, "splits": {part.slice.split: {"files": part.files, "characters": no_limit}}}
    with contextlib.suppress(NoDocument):
        yield from iter_chunks(job.raw, manifest, part.slice, job.chunk_chars)


def join_ranks(job: RankJob, out: Path) -> dict:
    """Make the ranks' files the shards of one token file; its sidecar is that of one process, and its shards.

    Raises IntegrityError for a rank's file whose bytes have changed, NoDocument if no rank has a token.
    """
    tokenizer, paths = load_tokenizer(job.tokenizer), [job.path(part) for part in job.parts]
    records = [read_json(sidecar_path(path)) for path in paths]
    shards = [Shard(path, r["tokens"], r["sha256"]) for path, r in zip(paths, records, strict=True) if r["tokens"]]
    if not shards:
        raise NoDocument(
            f"sources.{job.manifest['source']}: no document of split {job.slice.split!r} begins in characters "
            f"{job.slice.start_char} to {job.slice.end_char}; widen the range"
        )
    tally = Tally()
    for record in records:
        tally.add(Tally(**{field.name: record[field.name] for field in dataclasses.fields(Tally)}))
    described = tally.describe(tokenizer, job.slice, describe_source(job.raw, job.manifest))
    return join_shards(out, shards, tokenizer.meta["dtype"], described)
