"""The audit counts and marks duplicates and contamination, and describes how the vocabulary fits the text."""

from string import ascii_letters

import numpy as np
import pyarrow.parquet as pq
import pytest

import audit
from lm.core.files import read_json, write_json
from lm.text.duplicates import KINDS
from support.refusal import refused
from support.tokenize_cases import (
    ALL,
    AUDIT,
    make_project,
    run_audit,
    tokenize,
    write_params,
    write_raw,
)


def test_a_document_at_a_limit_is_contaminated_or_not_clean():
    contamination = audit.Contamination(tokens=np.full(5, 100), contaminated=np.array([19, 20, 79, 80, 100]))

    counts = audit.describe_contamination(contamination)

    assert counts["clean_documents"] == 1
    assert counts["contaminated_documents"] == 2
    assert counts["contaminated_fraction"] == 298 / 500


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that tokenizes two lists of texts as train and validation."""
    monkeypatch.chdir(tmp_path)
    make_project()

    def make(train, validation):
        write_raw([*train, *validation])
        length = sum(map(len, train))
        write_params({**ALL, "num_chars": length}, {**ALL, "start_char": length})
        assert tokenize("train") == tokenize("validation") == 0

    return make


def test_contamination_is_counted_by_document(project):
    copied = ascii_letters[5:25]
    half = ascii_letters[:13] + "-" * 13
    project([ascii_letters], [copied, "new" * 10, half])

    run_audit()

    assert pq.read_table("audit/contamination.parquet").to_pydict() == {
        "document": [0, 1, 2],
        "tokens": [20, 30, 26],
        "contaminated_fraction": [1.0, 0.0, 0.5],
        "utf8_bytes": [20, 30, 26],
    }


def kinds_of(row: dict) -> list[str]:
    """Return the kinds of duplicates that a row of duplicates.parquet marks."""
    return [kind for kind in KINDS if row[kind]]


def test_only_duplicates_have_a_row(project):
    project(["twice", "once", "twice"], ["twice ", "new"])

    counts = run_audit()["duplicates"]

    rows = pq.read_table("audit/duplicates.parquet").to_pylist()
    assert [(row["split"], row["document"], kinds_of(row)) for row in rows] == [
        ("train", 0, ["folded_across"]),
        ("train", 2, ["exact_within", "folded_within", "folded_across"]),
        ("validation", 0, ["folded_across"]),
    ]
    assert counts["train"] == {
        "exact_within": 1,
        "exact_across": 0,
        "folded_within": 1,
        "folded_across": 2,
    }


TWENTY = [f"text {number:02d}" for number in range(20)]
TEN = [f"{number:02d}" * 50 for number in range(10, 20)]  # a byte a token; the beginning of a near copy is in train
COPIES = "copies of training text"
CONTAMINATED = "near-copies or repeated passages"
LONGEST = "few documents decide the score"


@pytest.mark.parametrize(
    ("train", "validation", "num_copies", "warning"),
    [
        ([f" {text} " for text in TWENTY[:1]], TWENTY, 1, None),
        ([f" {text} " for text in TWENTY[:2]], TWENTY, 2, COPIES),
        ([f"{text}, and more" for text in TEN[:3]], TEN, 0, CONTAMINATED),
        ([], [f"{number:03d}" * 30 for number in range(10)] + ["x" * 100], 0, None),
        ([], [f"{number:03d}" * 30 for number in range(10)] + ["x" * 101], 0, LONGEST),
    ],
)
def test_text_that_makes_a_score_doubtful_is_warned_of(project, capsys, train, validation, num_copies, warning):
    project(["other", *train], validation)

    run_audit()

    said = capsys.readouterr()
    assert f"{num_copies} of {len(validation)} validation documents are also in train" in said.out
    for each in (COPIES, CONTAMINATED, LONGEST):
        assert (each in said.err) == (each == warning)


def test_the_card_counts_each_split(project):
    """A token is a byte, or the end of a document."""
    project(["naïve text", "more of it"], ["é" * 5])

    card = run_audit()

    table = pq.read_table("audit/contamination.parquet")
    assert table["utf8_bytes"].to_pylist() == [10]
    sha256 = read_json("out/validation.json")["sha256"]
    assert table.schema.metadata[b"validation_sha256"].decode() == sha256

    assert card["train"] == {
        "documents": 2,
        "characters": 20,
        "utf8_bytes": 21,
        "tokens": 23,
        "bytes_per_token": 21 / 23,
        "tokens_per_document": 23 / 2,
    }
    assert card["validation"]["utf8_bytes"] == 10
    assert read_json("metrics/data.json") == {"bytes_per_token": 21 / 23, "contaminated_fraction": 0.0}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tokens_of_another_text_are_refused(project, capsys, split):
    project(["abc"], ["d"])
    sidecar = read_json(f"out/{split}.json")
    other_source = sidecar["source"] | {"text_sha256": "ab" * 32}
    write_json(f"out/{split}.json", sidecar | {"source": other_source})

    status = audit.main(AUDIT)

    refused(status, capsys.readouterr().err, 4, f"out/{split}.bin: made from another version of raw")
