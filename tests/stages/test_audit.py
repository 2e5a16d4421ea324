"""Duplicates are counted and marked, exact ones and those after folding white space; contamination is measured."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq

from audit import (
    count_duplicates,
    describe_contamination,
    digest,
    flag_duplicates,
    is_repeat,
    measure_contamination,
)
from lm.core.files import read_json
from support.tokenize_cases import make_project, run_audit, tokenize, write_params, write_raw


def digests(texts):
    return np.array([(digest(t), digest(" ".join(t.split()))) for t in texts], dtype=np.uint64)


def test_duplicates_within_and_across():
    train = digests(["a b", "a b", "a  b", "c", "only"])
    validation = digests(["c", "a\nb", "new", "new"])
    flags = flag_duplicates(train, validation)
    assert flags.num_rows == 9
    assert flags["exact_within"].to_pylist() == [False, True, False, False, False, False, False, False, True]
    assert flags["folded_within"].to_pylist() == [False, True, True, False, False, False, False, False, True]
    assert flags["exact_across"].to_pylist() == [False, False, False, True, False, True, False, False, False]
    assert flags["folded_across"].to_pylist() == [True, True, True, True, False, True, True, False, False]
    assert count_duplicates(flags) == {
        "train": {"exact_within": 1, "exact_across": 1, "folded_within": 2, "folded_across": 4},
        "validation": {"exact_within": 1, "exact_across": 1, "folded_within": 1, "folded_across": 2},
    }


def test_the_first_of_equal_documents_is_not_a_repeat():
    assert is_repeat(np.array([5, 3, 5, 5, 3, 1])).tolist() == [False, False, True, True, True, False]


def tokens_of(ids):
    return SimpleNamespace(ids=np.array(ids, np.uint16), eot_id=0, meta={"sha256": "ab" * 32})


def test_contamination_is_counted_per_document_without_its_end():
    train = tokens_of([*range(1, 40), 0])
    half = [*range(1, 14), *range(113, 100, -1)]
    validation = tokens_of([*range(5, 25), 0, *range(100, 150), 0, *half, 0, 0])
    table = measure_contamination(train, validation)
    assert table["leaked_fraction"].to_pylist() == [1.0, 0.0, 0.5, 0.0]
    assert table["tokens"].to_pylist() == [20, 50, 26, 0]
    assert describe_contamination(table) == {
        "ngram_tokens": 13,
        "leaked_fraction": 33 / 96,
        "clean_documents": 2,
        "leaked_documents": 1,
    }


def test_the_bytes_of_each_validation_document_are_those_of_its_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = ["plain", "naïve é", "漢字 \N{GRINNING FACE}", "e\N{COMBINING ACUTE ACCENT}"]
    make_project()
    write_raw(texts)
    train = {"split": "text", "start_char": 0, "num_chars": len(texts[0])}
    write_params(train, {"split": "text", "start_char": len(texts[0]), "num_chars": None})
    assert tokenize("train") == tokenize("validation") == 0
    run_audit()
    table = pq.read_table("audit/contamination.parquet")
    assert table["utf8_bytes"].to_pylist() == [len(text.encode()) for text in texts[1:]]
    assert sum(table["utf8_bytes"].to_pylist()) == read_json("out/validation.json")["utf8_bytes"]
    assert table.schema.metadata[b"validation_sha256"].decode() == read_json("out/validation.json")["sha256"]
