"""Former names of commands run the new command, and say so."""

import runpy
import shlex

import pytest

from support import ROOT

program = runpy.run_path(str(ROOT / "src" / "__main__.py"))

COMMANDS = [
    ("checkpoint 450", "verify --retrain 450"),
    ("checkpoint 450 data/early", "verify --retrain 450 --weights data/early"),
    ("checkpoint --debug 450 data/early", "verify --retrain 450 --weights data/early --debug"),
    ("checkpoint --help", "verify --help"),
    ("reproduce", "prove --twice"),
    ("reproduce --out other.json", "prove --twice --out other.json"),
    ("verify --recompute", "verify --retrain"),
    ("verify --recompute --from 90", "verify --from 90 --retrain"),
    ("verify --cache --recompute exported", "verify --cache exported --retrain"),
]


@pytest.mark.parametrize(("former", "new"), COMMANDS, ids=[former for former, _ in COMMANDS])
def test_a_former_command_is_the_new_one(former, new):
    assert program["new_command"](shlex.split(former)) == shlex.split(new)


@pytest.mark.parametrize("line", ["verify", "verify --retrain 450", "prove --twice", "checkpoint 1 2 3", "compare a b"])
def test_other_commands_stay_as_they_are(line):
    assert program["new_command"](shlex.split(line)) == shlex.split(line)


@pytest.mark.parametrize(
    ("former", "new", "error"),
    [
        ("checkpoint 450 early", "verify --retrain 450 --weights early", "error: dvc.yaml: missing;"),
        ("verify --recompute", "verify --retrain", "error: dvc.yaml: missing;"),
    ],
)
def test_the_new_command_runs_after_one_sentence_that_names_it(tmp_path, monkeypatch, capsys, former, new, error):
    monkeypatch.chdir(tmp_path)

    status = program["main"](shlex.split(former))

    assert status == 2
    warning, message = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: `python src {former}` is now `python src {new}`, which runs; ")
    assert message.startswith(error)


def test_no_list_of_commands_has_a_former_name():
    assert not {"checkpoint", "reproduce"} & program["TOOLS"].keys()
