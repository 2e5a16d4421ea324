"""A mixture is read as one stream: which documents, in which order, with which counts, and what is refused."""

import itertools
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from lm.text import parquet, raw_files
from lm.text.documents import open_manifest, open_text
from lm.text.mixture import missed_weights
from lm.text.slices import Slice
from support.mixture_cases import write_mixture
from support.properties import check_examples

A = [f"a{i:02d}" for i in range(20)]  # 60 bytes
B = [f"bbbb{i:02d}" for i in range(5)]  # 30 bytes
C = ["cc"]  # 2 bytes
SOURCES = {
    "a": {"train": A, "validation": A[::-1]},
    "b": {"train": B, "validation": B[::-1]},
    "c": {"train": C, "validation": C},
}
TRAIN = Slice("train", 0, None)


def test_the_manifest_says_how_much_of_each_source_is_in_the_mixture(tmp_path):
    write_mixture(tmp_path, SOURCES, {"a": 1, "b": 1, "c": 0})

    splits = open_manifest(tmp_path)["splits"]

    assert splits["validation"]["sources"]["b"] == {"documents": 5, "utf8_bytes": 30}
    assert list(splits["validation"]["sources"]) == ["a", "b", "c"], "also without a weight for training"
    sources = splits["train"]["sources"]
    assert sources["a"] == {"documents": 15, "utf8_bytes": 45, "passes": 0.75, "fraction": 0.5172, "weight": 0.5}
    assert sources["b"] == {"documents": 7, "utf8_bytes": 42, "passes": 1.4, "fraction": 0.4828, "weight": 0.5}


def test_a_source_that_misses_its_weight_by_more_than_2_percent_is_named():
    def warnings(fraction: float) -> list[str]:
        source = {"fraction": fraction, "weight": 0.3, "documents": 1}
        return missed_weights({"splits": {"train": {"sources": {"a": source}}}})

    assert warnings(0.2801) == warnings(0.3199) == []
    assert len(warnings(0.2799)) == len(warnings(0.3201)) == 1


# Properties


TEXTS = st.lists(st.text(st.sampled_from("aé漢\N{GRINNING FACE}"), max_size=12), min_size=1, max_size=15).filter(any)
WEIGHTS = st.sampled_from([0, 0.1, 0.5, 1, 2.7, 10])


def has_a_weight(sources: list[tuple[list[str], float]]) -> bool:
    return any(weight > 0 for _, weight in sources)


WEIGHTED_SOURCES = st.lists(st.tuples(TEXTS, WEIGHTS), min_size=1, max_size=4).filter(has_a_weight)


def expected_stream(sources: list[tuple[list[str], float]]) -> list[str]:
    """Return the documents in the order of the definition, computed one document at a time."""
    used = [(texts, weight) for texts, weight in sources if weight > 0]
    sum_of_weights = sum(weight for _, weight in used)
    stream_bytes = sum(num_bytes(text) for texts, _ in used for text in texts)
    turns = []
    for number, (texts, weight) in enumerate(used):
        # Repeat the documents until the source has its fraction of the stream.
        fraction = weight / sum_of_weights
        own_bytes = 0
        for count, text in enumerate(itertools.cycle(text for text in texts if text)):
            key = (own_bytes + num_bytes(text) / 2) / fraction
            if key >= stream_bytes:
                break
            turns.append((key, number, count, text))
            own_bytes += num_bytes(text)
    return [text for _, _, _, text in sorted(turns)]


def num_bytes(text: str) -> int:
    return len(text.encode())


def chunks_of_mixture(sources, per_file: int) -> list:
    """Return the training chunks of the mixture of the sources p0, p1, …"""
    splits = {}
    weights = {}
    for number, (texts, weight) in enumerate(sources):
        splits[f"p{number}"] = {"train": texts, "validation": ["v"]}
        weights[f"p{number}"] = weight
    with tempfile.TemporaryDirectory() as folder:
        write_mixture(Path(folder), splits, weights, per_file)
        return list(open_text(Path(folder), TRAIN).chunks())


@settings(check_examples, max_examples=20)
@given(
    sources=WEIGHTED_SOURCES,
    chunk_chars=st.integers(1, 60),
    per_file=st.integers(1, 6),
    rows=st.integers(1, 5),
    batch_bytes=st.integers(1, 200),
    group_chars=st.integers(1, 2000),
)
def test_the_stream_is_the_definition_for_any_batches(sources, chunk_chars, per_file, rows, batch_bytes, group_chars):
    sizes = {"BATCH_BYTES": batch_bytes, "MAX_BATCH_ROWS": rows}
    with (
        mock.patch.multiple(parquet, **sizes),
        mock.patch.multiple(raw_files, GROUP_CHARS=group_chars),
        mock.patch("lm.text.documents.CHUNK_CHARS", chunk_chars),
    ):
        chunks = chunks_of_mixture(sources, per_file)

    texts = [text for chunk in chunks for text in chunk.texts.to_pylist()]
    assert texts == expected_stream(sources)
