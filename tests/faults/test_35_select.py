"""Fault 35: a selection that is killed, meets a full disk, belongs to another text, or leaves nothing."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import audit
import make_tokenizer
import tokenize_split
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.text.parquet import describe_split, write_documents
from lm.text.selection import read_dropped
from support import ROOT
from support.kills import killed_before_call
from support.refusal import files_below, refused
from support.tokenize_cases import (
    ALL,
    ENVIRONMENT,
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
DROPPED = [20, 21, 22, 23]


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


def run(program: str, *options: str) -> subprocess.CompletedProcess:
    """Run a Python program with the stage's arguments."""
    command = [sys.executable, "-c", program, *options, "--raw", "raw", "--selection", "selection"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=100)


def test_35_killed_at_each_step_of_writing_the_selection_is_whole_or_missing(project):
    assert select() == 0
    whole, survived = files_below(Path("selection")), []
    assert read_dropped(Path("selection"), Path("raw"))["mine", "text"].tolist() == DROPPED
    for step in range(1, 20):
        shutil.rmtree("selection", ignore_errors=True)
        killed = run(killed_before_call("select_documents"), str(step))
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL
        survived.append(Path("selection").exists())
        assert not survived[-1] or files_below(Path("selection")) == whole
    assert survived == sorted(survived) and set(survived) == {False, True}, "the last rename makes it appear"
    assert files_below(Path("selection")) == whole
    assert [path.name for path in project.glob(".selection.*.tmp")] == []


LIMITED = """
import resource, sys, select_documents
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(select_documents.main(sys.argv[1:]))
"""


def test_35_a_failed_write_ends_with_5_and_keeps_the_old_selection(project):
    """A limit on the size of files (EFBIG) stands in for the full disk, which needs the right to mount one."""
    assert select() == 0
    before = files_below(Path("selection"))
    choose(FILTERED | {"min_chars": None}, train=ALL)
    limited = run(LIMITED)
    refused(limited.returncode, limited.stderr, 5, "selection: File too large", "run the same command again")
    assert files_below(Path("selection")) == before
    assert select() == 0 and files_below(Path("selection")) != before


def start(stage: str) -> int:
    """Run a stage that reads the selection."""
    inputs, tokens = ["--raw", "raw", "--selection", "selection"], ["--tokens", f"out/{stage}.bin"]
    match stage:
        case "make_tokenizer":
            return make_tokenizer.main([*inputs, "--tokenizer", "made"])
        case "audit":
            files = ["--train", "out/train.bin", "--validation", "out/validation.bin"]
            files += ["--tokenizer", "tokenizer", "--audit", "audited", "--metrics", "metrics"]
            return audit.main([*inputs, *files])
    return tokenize_split.main(["--split", stage, *inputs, "--tokenizer", "tokenizer", *tokens])


STAGES = ["make_tokenizer", "train", "validation", "audit"]


@pytest.mark.parametrize("stage", STAGES)
def test_35_an_old_selection_of_a_changed_text_is_refused(project, capsys, stage):
    assert tokenize("train") == tokenize("validation") == 0
    before = files_below(project)
    write_documents(Path("raw/text/0000.parquet"), TEXTS[::-1])
    splits = {"text": describe_split(Path("raw"), "text", "text")}
    write_json("raw/manifest.json", {"source": "mine", "column": "text", "splits": splits})
    capsys.readouterr()
    sentence = "selection: made from another version of raw; run `dvc repro`"
    refused(start(stage), capsys.readouterr().err, 4, sentence)
    after = files_below(project)
    assert {name for name in after if after[name] != before.get(name)} == {"raw/text/0000.parquet", "raw/manifest.json"}


@pytest.mark.parametrize("stage", STAGES)
def test_35_a_damaged_selection_is_refused(project, capsys, stage):
    assert tokenize("train") == tokenize("validation") == 0
    path = Path("selection/dropped.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    capsys.readouterr()
    refused(start(stage), capsys.readouterr().err, 4, "selection/dropped.parquet: sha256 is", "details.json says")
    path.write_bytes(content)
    assert start(stage) == 0


def test_35_tokens_made_with_another_selection_are_refused_by_audit(project, capsys):
    assert tokenize("train") == tokenize("validation") == 0
    choose(FILTERED | {"min_chars": None}, train=ALL)
    assert select() == 0
    capsys.readouterr()
    sentence = "out/train.bin: made with another version of selection; run `dvc repro`"
    refused(start("audit"), capsys.readouterr().err, 4, sentence)
    assert not Path("audited").exists()


def test_35_the_tokens_are_those_of_the_documents_that_stay(project):
    assert tokenize("train") == tokenize("validation") == 0
    assert Path("out/train.bin").read_bytes() == expected_ids(LONG[8:]).tobytes()
    assert Path("out/validation.bin").read_bytes() == expected_ids(LONG[:8]).tobytes()
    assert start("audit") == 0
    card = read_json("audited/details.json")
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
