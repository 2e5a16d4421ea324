"""What holds for any parts and weights: the order, its independence of batches, and the shares of every stretch."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from lm.text import mixture, parquet
from lm.text.documents import iter_chunks
from lm.text.slices import slice_from
from support.mixture_cases import mixed, write_mixture
from support.properties import check_examples

TEXTS = st.lists(st.text(st.sampled_from("aé漢\N{GRINNING FACE}"), max_size=12), min_size=1, max_size=15).filter(any)
PARTS = st.lists(st.tuples(TEXTS, st.sampled_from([0, 0.1, 0.5, 1, 2.7, 10])), min_size=1, max_size=4).filter(
    lambda parts: any(weight for _, weight in parts)
)


def expected_stream(parts: list[tuple[list[str], float]]) -> list[tuple[int, str]]:
    """Return (part, document) in the order of the definition, one document at a time."""
    parts = [([text for text in texts if text], weight) for texts, weight in parts]
    sum_of_weights = sum(weight for _, weight in parts if weight)
    total = sum(len(text.encode()) for texts, weight in parts if weight for text in texts)
    keyed = []
    for number, (texts, weight) in enumerate(parts):
        position, count = 0, itertools.count()
        for text in itertools.cycle(texts) if weight else ():
            key = position / (weight / sum_of_weights)
            if key >= total:
                break
            keyed.append((key, number, next(count), text))
            position += len(text.encode())
    return [(number, text) for _, number, _, text in sorted(keyed)]


def read_stream(parts, chunk_chars: int, per_file: int) -> list[tuple[str, dict]]:
    """Return the documents of the mixed stream, and the totals of the parts."""
    names = [f"p{number}" for number in range(len(parts))]
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: {"train": texts, "validation": ["v"]} for name, (texts, _) in zip(names, parts, strict=True)}
        manifest = write_mixture(Path(folder), texts, per_file)
        weights = {name: weight for name, (_, weight) in zip(names, parts, strict=True)}
        chunks = list(iter_chunks(Path(folder), manifest, slice_from(mixed(weights)), chunk_chars))
    totals = {name: [0, 0] for name in names}
    for chunk in chunks:
        for name, count in chunk.parts.items():
            totals[name] = [totals[name][0] + count.documents, totals[name][1] + count.utf8_bytes]
    return [text for chunk in chunks for text in chunk.texts.to_pylist()], totals


@check_examples
@given(
    parts=PARTS, chunk_chars=st.integers(1, 60), per_file=st.integers(1, 6), rows=st.integers(1, 5),
    batch_bytes=st.integers(1, 200), group_chars=st.integers(1, 2000),
)  # fmt: skip
def test_the_stream_is_the_definition_for_any_batches(parts, chunk_chars, per_file, rows, batch_bytes, group_chars):
    expected = expected_stream(parts)
    sizes = {"BATCH_BYTES": batch_bytes, "MAX_BATCH_ROWS": rows}
    with mock.patch.multiple(mixture, **sizes), mock.patch.multiple(parquet, **sizes, GROUP_CHARS=group_chars):
        texts, totals = read_stream(parts, chunk_chars, per_file)
    assert texts == [text for _, text in expected]
    for number, counted in enumerate(totals.values()):
        own = [len(text.encode()) for part, text in expected if part == number]
        assert counted == [len(own), sum(own)]


@check_examples
@given(parts=PARTS)
def test_every_stretch_has_the_asked_shares_within_the_longest_documents(parts):
    stream = [(number, len(text.encode())) for number, text in expected_stream(parts)]
    sum_of_weights = sum(weight for _, weight in parts)
    longest = [max(len(text.encode()) for text in texts) if weight else 0 for texts, weight in parts]
    for number, (_, weight) in enumerate(parts):
        share = weight / sum_of_weights
        bound = (1 - share) * longest[number] + share * (sum(longest) - longest[number])
        excess = [0.0]
        for part, size in stream:
            excess.append(excess[-1] + size * ((part == number) - share))
        assert max(excess) - min(excess) <= bound + 1e-6
