"""`python src reproduce`: two runs from scratch are compared with each other and with dvc.lock, output by output."""

import json
import re

import pytest

from support import ROOT
from tools import reproduce
from tools.common.environment import versions


def lock_of(outputs):
    outs = [{"path": path, "md5": md5} for path, md5 in outputs.items()]
    return json.dumps({"stages": {"train": {"outs": outs}}})


@pytest.mark.parametrize(
    ("committed", "first", "second", "status", "sentence"),
    [
        (
            {"a": "1", "b": "2"},
            {"a": "1", "b": "2"},
            {"a": "1", "b": "2"},
            0,
            "2 outputs of two runs have the bytes of",
        ),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"a": "1", "b": "3"}, 4, "two runs of it differ in b"),
        ({"a": "1", "b": "2"}, {"a": "9", "b": "2"}, {"a": "9", "b": "2"}, 4, "its runs and its dvc.lock differ in a"),
        ({"a": "1", "b": "2"}, {"a": "1"}, {"a": "1"}, 4, "its runs and its dvc.lock differ in b"),
    ],
)
def test_an_output_that_differs_is_named(tmp_path, monkeypatch, capsys, committed, first, second, status, sentence):
    runs = iter([first, second])

    def run(*arguments, folder):
        if arguments[:2] == ("git", "clone"):
            (arguments[-1] / "data/models").mkdir(parents=True)
            (arguments[-1] / "data/models/model.json").write_text('{"segments": []}')
            (arguments[-1] / "dvc.lock").write_text(lock_of(committed))
        elif arguments[0] == "dvc":
            assert "--no-run-cache" in arguments
            (folder / "dvc.lock").write_text(lock_of(next(runs)))
        return str(tmp_path) if "--show-toplevel" in arguments else "0123456789abcdef"

    monkeypatch.setattr(reproduce, "run", run)
    assert reproduce.main(["--out", str(tmp_path / "repro.json")]) == status
    assert re.search(f"{sentence}.*$", "".join(capsys.readouterr()).splitlines()[-1])
    outputs = json.loads((tmp_path / "repro.json").read_text())["outputs"]
    assert {path: entry["md5"] for path, entry in outputs.items()} == {path: first.get(path) for path in committed}


def test_the_versions_are_of_all_packages_that_decide_bits():
    pinned = {
        line.partition("==")[0] for line in (ROOT / "requirements/bits.txt").read_text().splitlines() if "==" in line
    }
    assert {"torch", "numpy", "numba", "llvmlite"} <= pinned
    assert set(versions()) == pinned | {"python", "matplotlib", "dvc"}


def test_the_committed_evidence_is_that_of_dvc_lock():
    """After the results were made again: `make reproduce`, and commit metrics/repro.json."""
    evidence = json.loads((ROOT / "metrics/repro.json").read_text())["outputs"]
    assert {path: entry["md5"] for path, entry in evidence.items()} == reproduce.output_hashes(ROOT / "dvc.lock")
    assert all(entry["same_in_both_runs"] and entry["same_as_committed"] for entry in evidence.values())
