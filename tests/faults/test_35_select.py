"""Fault 35: a selection that belongs to another text, or leaves nothing. test_tables.py kills and damages it."""

from pathlib import Path

import pytest

import audit
import make_tokenizer
import tokenize_split
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.text.parquet import describe_split, write_documents
from support import ROOT
from support.refusal import files_below, refused
from support.tokenize_cases import (
    ALL,
    AUDIT,
    TEXT,
    arguments,
    expected_ids,
    make_project,
    select,
    tokenize,
    write_params,
    write_raw,
)

FILTERED = read_yaml(ROOT / "presets.yaml")["selections"]["filtered"]
WORDS = "Every sentence of this document, the one with number {}, has some words and {} that no other sentence has. "
LONG = ["".join(WORDS.format(i, i * 1000 + j) for j in range(8)) for i in range(20)]
TEXTS = [*LONG, LONG[3], "short", *LONG[5:7]]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory with a text of which the rules drop four documents, all in the training slice."""
    monkeypatch.chdir(tmp_path)
    make_project()
    write_raw(TEXTS)
    length = sum(map(len, TEXTS[:8]))
    choose(FILTERED, train=ALL | {"start_char": length}, validation=ALL | {"num_chars": length})
    return tmp_path


def choose(rules: dict, **slices) -> None:
    """Write parameters that select by these rules."""
    write_params(**slices)
    write_json("params.yaml", read_yaml("params.yaml") | {"selection": {"name": "mine"}})
    write_json("presets.yaml", read_yaml("presets.yaml") | {"selections": {"mine": rules}})


STAGES = {  # that read the selection
    "make_tokenizer": lambda: make_tokenizer.main([*TEXT, "--tokenizer", "made"]),
    "train": lambda: tokenize_split.main(arguments("train")),
    "validation": lambda: tokenize_split.main(arguments("validation")),
    "audit": lambda: audit.main(AUDIT),
}


@pytest.mark.parametrize("stage", STAGES)
def test_35_an_old_selection_of_a_changed_text_is_refused(project, capsys, stage):
    assert tokenize("train") == tokenize("validation") == 0
    before = files_below(project)
    write_documents(Path("raw/text/0000.parquet"), TEXTS[::-1])
    splits = {"text": describe_split(Path("raw"), "text", "text")}
    write_json("raw/manifest.json", {"source": "mine", "column": "text", "splits": splits})
    capsys.readouterr()
    sentence = "selection: made from another version of raw; run `dvc repro`"
    refused(STAGES[stage](), capsys.readouterr().err, 4, sentence)
    after = files_below(project)
    assert {name for name in after if after[name] != before.get(name)} == {"raw/text/0000.parquet", "raw/manifest.json"}


def test_35_tokens_made_with_another_selection_are_refused_by_audit(project, capsys):
    assert tokenize("train") == tokenize("validation") == 0
    choose(FILTERED | {"min_chars": None}, train=ALL)
    assert select() == 0
    capsys.readouterr()
    sentence = "out/train.bin: made with another version of selection; run `dvc repro`"
    refused(STAGES["audit"](), capsys.readouterr().err, 4, sentence)
    assert not Path("audit").exists()


def test_35_the_tokens_are_those_of_the_documents_that_stay(project):
    assert tokenize("train") == tokenize("validation") == 0
    assert Path("out/train.bin").read_bytes() == expected_ids(LONG[8:]).tobytes()
    assert Path("out/validation.bin").read_bytes() == expected_ids(LONG[:8]).tobytes()
    assert STAGES["audit"]() == 0
    card = read_json("audit/details.json")
    assert card["selection"]["dropped"] == {
        "min_chars": {"documents": 1, "characters": 5},
        "exact_duplicates": {"documents": 3, "characters": sum(len(LONG[i]) for i in (3, 5, 6))},
    }
    assert card["train"]["documents"] == 12 and card["duplicates"]["train"]["exact_within"] == 0


def test_35_a_slice_of_which_nothing_is_left_is_refused(project, capsys):
    begin = sum(map(len, TEXTS[:20]))
    choose(FILTERED, train=ALL | {"start_char": begin}, validation=ALL | {"num_chars": begin})
    refused(tokenize("train"), capsys.readouterr().err, 3, "is left after the selection; loosen its rules, or widen")
    assert not Path("out/train.bin").exists()


def test_35_rules_that_leave_nothing_are_refused(project, capsys):
    choose(FILTERED | {"min_chars": 10**6, "max_chars": None})
    sentence = (
        "presets.yaml: selections.mine: no document of split 'text' of mine is left; min_chars drops most of them"
    )
    refused(select(), capsys.readouterr().err, 3, sentence, "24 of 24; loosen that rule")
    assert not Path("selection").exists()
