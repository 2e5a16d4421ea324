"""Fault 35: tokens of another text, or rules that leave nothing. test_tables.py kills and damages the stage."""

from pathlib import Path

import pytest

import audit
import fetch
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from support import ROOT
from support.refusal import refused
from support.tokenize_cases import ALL, AUDIT, FETCH, LOCAL, expected_ids, make_project, tokenize, write_params

FILTERED = read_yaml(ROOT / "presets.yaml")["selections"]["filtered"]
WORDS = "Every sentence of this document, the one with number {}, has some words and {} that no other sentence has. "
LONG = ["".join(WORDS.format(i, i * 1000 + j) for j in range(8)) for i in range(20)]
TEXTS = [*LONG, LONG[3], "short", *LONG[5:7]]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory with own text of which the rules drop four documents."""
    monkeypatch.chdir(tmp_path)
    make_project()
    Path("texts").mkdir()
    for number, text in enumerate(TEXTS):
        Path(f"texts/{number:02d}.txt").write_text(text)
    length = sum(map(len, LONG[:8]))
    choose(FILTERED, train=ALL | {"start_char": length}, validation=ALL | {"num_chars": length})
    return tmp_path


def choose(rules: dict, **slices) -> None:
    """Write parameters that select by these rules."""
    write_params(fetch=LOCAL, **slices)
    write_json("params.yaml", read_yaml("params.yaml") | {"selection": {"name": "mine"}})
    write_json("presets.yaml", read_yaml("presets.yaml") | {"selections": {"mine": rules}})


def test_35_tokens_of_another_text_are_refused_by_audit(project, capsys):
    assert fetch.main(FETCH) == tokenize("train") == tokenize("validation") == 0
    choose(FILTERED | {"min_chars": None}, train=ALL)
    assert fetch.main(FETCH) == 0
    capsys.readouterr()
    refused(audit.main(AUDIT), capsys.readouterr().err, 4, "out/train.bin: made from another version of raw; run")
    assert not Path("audit").exists()


def test_35_the_tokens_are_those_of_the_documents_that_stay(project):
    assert fetch.main(FETCH) == tokenize("train") == tokenize("validation") == 0
    assert Path("out/train.bin").read_bytes() == expected_ids(LONG[8:]).tobytes()
    assert Path("out/validation.bin").read_bytes() == expected_ids(LONG[:8]).tobytes()
    assert audit.main(AUDIT) == 0
    card = read_json("audit/details.json")
    assert card["selection"]["dropped"] == {
        "min_chars": {"documents": 1, "characters": 5},
        "exact_duplicates": {"documents": 3, "characters": sum(len(LONG[i]) for i in (3, 5, 6))},
    }
    assert card["train"]["documents"] == 12 and card["duplicates"]["train"]["exact_within"] == 0


def test_35_rules_that_leave_nothing_are_refused(project, capsys):
    choose(FILTERED | {"min_chars": 10**6, "max_chars": None})
    sentence = (
        "presets.yaml: selections.mine: no document of split 'text' of mine is left; min_chars drops most of them"
    )
    refused(fetch.main(FETCH), capsys.readouterr().err, 3, sentence, "24 of 24; loosen that rule")
    assert not Path("raw").exists()
