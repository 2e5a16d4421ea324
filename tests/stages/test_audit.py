"""The audit counts and marks duplicates and contamination, and describes how the vocabulary fits the text."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

import audit
from lm.core.files import read_json
from support.refusal import refused
from support.tokenize_cases import (
    ALL,
    AUDIT,
    TEXT,
    make_project,
    run_audit,
    tokenize,
    write_params,
    write_raw,
)


def tokens_of(ids):
    return SimpleNamespace(ids=np.array(ids, np.uint16), eot_id=0, meta={"sha256": "ab" * 32})


def test_contamination_is_counted_by_document(tmp_path):
    train = tokens_of([*range(1, 40), 0])
    half = [*range(1, 14), *range(113, 100, -1)]
    validation = tokens_of([*range(5, 25), 0, *range(100, 150), 0, *half, 0, 0])
    found = audit.find_contamination(train, validation)
    audit.write_contamination(tmp_path / "x.parquet", found, [1, 2, 3, 4], validation)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.to_pydict() == {
        "document": [0, 1, 2, 3], "tokens": [20, 50, 26, 0], "contaminated_fraction": [1.0, 0.0, 0.5, 0.0],
        "utf8_bytes": [1, 2, 3, 4],
    }  # fmt: skip
    assert table.schema.metadata == {b"validation_sha256": b"ab" * 32}
    assert audit.describe_contamination(found) == {
        "ngram_tokens": 13,
        "contaminated_fraction": 33 / 96,
        "clean_documents": 2,
        "contaminated_documents": 1,
    }


def test_a_document_at_a_limit_is_contaminated_or_not_clean():
    found = audit.Contamination(np.full(5, 100), np.array([19, 20, 79, 80, 100]))
    counts = audit.describe_contamination(found)
    assert (counts["clean_documents"], counts["contaminated_documents"]) == (1, 2)
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


def test_the_bytes_of_a_document_are_those_of_its_text(project):
    texts = ["naïve é", "漢字 \N{GRINNING FACE}", "e\N{COMBINING ACUTE ACCENT}"]
    project(["plain"], texts)
    run_audit()
    table = pq.read_table("audit/contamination.parquet")
    assert table["utf8_bytes"].to_pylist() == [len(text.encode()) for text in texts]
    assert sum(table["utf8_bytes"].to_pylist()) == read_json("out/validation.json")["utf8_bytes"]
    assert table.schema.metadata[b"validation_sha256"].decode() == read_json("out/validation.json")["sha256"]


def test_only_duplicates_have_a_row(project):
    project(["twice", "once", "twice"], ["twice ", "new"])
    counts = run_audit()["duplicates"]
    rows = pq.read_table("audit/duplicates.parquet").to_pylist()
    marks = [(row["split"], row["document"], [kind for kind, on in row.items() if on is True]) for row in rows]
    assert marks == [
        ("train", 0, ["folded_across"]),
        ("train", 2, ["exact_within", "folded_within", "folded_across"]),
        ("validation", 0, ["folded_across"]),
    ]
    assert counts["train"] == {"exact_within": 1, "exact_across": 0, "folded_within": 1, "folded_across": 2}


@pytest.mark.parametrize(("num_copies", "is_said"), [(1, False), (2, True)])
def test_copies_of_training_text_are_warned_of(project, capsys, num_copies, is_said):
    validation = [f"text {number:02d}" for number in range(20)]
    project(["other", *(f" {text} " for text in validation[:num_copies])], validation)

    run_audit()

    said = capsys.readouterr()
    assert f"{num_copies} of 20 validation documents are also in train" in said.out
    warning = "warning: 10% of the validation documents are copies of training text (but for white space); the "
    assert (warning in said.err) == is_said


@pytest.mark.parametrize(("length", "is_said"), [(100, False), (101, True)])
def test_a_document_with_more_than_a_tenth_of_validation_is_warned_of(project, capsys, length, is_said):
    others = [f"{number:03d}" * 30 for number in range(10)]
    project(["abc"], [*others, "x" * length])

    run_audit()

    warning = "warning: the longest of 11 validation documents has 10% of the text; few documents decide the score"
    assert (warning in capsys.readouterr().err) == is_said


def test_the_card_describes_the_vocabulary(project):
    project(["abc 12", "Zürich!"], ["d"])
    found = run_audit()["tokenizer"]
    assert found["unused_entries"] == 257 - len({*b"abc 12Z", *"ürich!".encode()}) - 1
    assert found["single_byte_fraction"] == 1.0 and len(found["longest"]) == 10
    assert found["scripts"]["digits"] == {"tokens": 2, "bytes_per_token": 1.0}
    assert found["scripts"]["incomplete"]["tokens"] == 2 and "validation_sources" not in found


def test_the_card_counts_each_split(project):
    train = ["naïve text", "more of it"]
    validation = ["é" * 5]
    project(train, validation)
    card = run_audit()
    metrics = read_json("metrics/data.json")
    for texts, name in ((train, "train"), (validation, "validation")):
        num_bytes = sum(len(text.encode()) for text in texts)
        num_tokens = num_bytes + len(texts)
        assert card[name] == {
            "documents": len(texts), "characters": sum(map(len, texts)), "utf8_bytes": num_bytes, "tokens": num_tokens,
            "bytes_per_token": num_bytes / num_tokens, "tokens_per_document": num_tokens / len(texts),
        }  # fmt: skip
    assert metrics == {"bytes_per_token": 21 / 23, "contaminated_fraction": 0.0}


def test_another_tokenizer_is_refused(project, capsys):
    project(["abc"], ["d"])
    meta = read_json("tokenizer/meta.json")
    audit.write_json("tokenizer/meta.json", {**meta, "encoding": "another"})
    splits = ["--train", "out/train.bin", "--validation", "out/validation.bin"]
    status = audit.main([*TEXT, "--tokenizer", "tokenizer", *splits, "--audit", "audit", "--metrics", "m"])
    refused(status, capsys.readouterr().err, 4, "out/train.bin: made with tokenizer")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tokens_of_another_text_are_refused(project, capsys, split):
    project(["abc"], ["d"])
    sidecar = read_json(f"out/{split}.json")
    audit.write_json(f"out/{split}.json", {**sidecar, "source": {**sidecar["source"], "text_sha256": "ab" * 32}})
    refused(audit.main(AUDIT), capsys.readouterr().err, 4, f"out/{split}.bin: made from another version of raw")
