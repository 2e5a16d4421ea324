"""`python src prove --twice`: the outputs of two runs from scratch are compared with each other and with dvc.lock."""

import json
from pathlib import Path

import pytest

from lm.core.files import read_json
from support import ROOT
from tools.common.environment import versions
from tools.common.lock import read_lock
from tools.prove import cli, twice

HEAD = "0123456789abcdef"


def write_lock(clone: Path, outputs: dict[str, str]) -> None:
    """Write a dvc.lock with one stage that has these outputs, each with its MD5."""
    outs = [{"path": path, "md5": md5} for path, md5 in outputs.items()]
    (clone / "dvc.lock").write_text(json.dumps({"stages": {"train": {"outs": outs}}}))


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """Replace Git and DVC: return a function that sets the outputs of the commit and of the two runs."""

    def of(committed: dict[str, str], first: dict[str, str], second: dict[str, str]) -> None:
        runs = iter([first, second])

        def run(*command, folder):
            match command:
                case ("git", "rev-parse", "--show-toplevel"):
                    return str(tmp_path)
                case ("git", "rev-parse", "HEAD"):
                    return HEAD
                case ("git", "clone", "-q", _, clone):
                    models = clone / "data" / "models"
                    models.mkdir(parents=True)
                    (models / "model.json").write_text('{"segments": []}')
                    write_lock(clone, committed)
                case ("dvc", "repro", "--no-run-cache"):
                    write_lock(folder, next(runs))
                case _:
                    raise AssertionError(command)
            return ""

        monkeypatch.setattr(twice, "run", run)

    monkeypatch.chdir(tmp_path)
    return of


def test_two_runs_with_the_committed_outputs_are_recorded(pipeline, capsys):
    outputs = {"a": "1", "b": "2"}
    pipeline(committed=outputs, first=outputs, second=outputs)

    status = cli.main(["--twice"])

    assert status == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "2 outputs of two runs have the bytes of dvc.lock at 0123456789ab"
    record = read_json("metrics/repro.json")
    assert record["commit"] == HEAD
    assert record["outputs"]["b"] == {"md5": "2", "same_in_both_runs": True, "same_as_committed": True}


DIFFERENCES = {
    "the second run": ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, "two runs of it differ in b"),
    "both runs": ({"a": "9", "b": "2"}, {"a": "9", "b": "2"}, "its runs and its dvc.lock differ in a"),
    "a missing output": ({"a": "1"}, {"a": "1"}, "its runs and its dvc.lock differ in b"),
}


@pytest.mark.parametrize(("first", "second", "sentence"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_an_output_that_differs_is_named_and_recorded(pipeline, capsys, first, second, sentence):
    pipeline({"a": "1", "b": "2"}, first, second)

    status = cli.main(["--twice", "--out", "other.json"])

    assert status == 4
    assert capsys.readouterr().err == f"error: other.json: commit 0123456789ab: {sentence}\n"
    recorded = read_json("other.json")["outputs"]
    assert {path: output["md5"] for path, output in recorded.items()} == {"a": None, "b": None} | first


def test_arguments_of_another_proof_are_refused(capsys):
    wrong = {"--twice --run short": "not allowed with", "--twice --threads 1 --write": "leave out --threads, --write"}
    for arguments, sentence in (wrong | {"--out other.json": "add --twice"}).items():
        with pytest.raises(SystemExit, match="2"):
            cli.main(arguments.split())

        assert sentence in capsys.readouterr().err


def test_the_versions_are_of_all_packages_that_decide_bits():
    lines = (ROOT / "requirements/bits.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}

    assert {"torch", "numpy", "numba", "llvmlite"} <= pinned
    assert set(versions()) == pinned | {"python", "matplotlib", "dvc"}


def test_the_committed_evidence_is_that_of_dvc_lock():
    """After the results were made again: `make reproduce`, and commit metrics/repro.json."""
    evidence = read_json(ROOT / "metrics/repro.json")["outputs"]

    hashes = {path: output["md5"] for path, output in evidence.items()}
    assert hashes == read_lock(ROOT).hashes("outs")
    assert all(output["same_in_both_runs"] and output["same_as_committed"] for output in evidence.values())
