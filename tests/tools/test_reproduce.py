"""`python src reproduce`: two runs from scratch are compared output by output."""

import json

import pytest

from support.workspace import Workspace
from tools import reproduce


def test_different_outputs_are_named():
    first, second, committed = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "9", "b": "2"}
    result = reproduce.compare(first, second, committed)
    assert result["verdict"] == "different"
    assert [entry["same_in_both_runs"] for entry in result["outputs"].values()] == [True, False]
    assert [entry["same_as_committed"] for entry in result["outputs"].values()] == [False, True]
    assert reproduce.compare(first, first, {})["verdict"] == "identical"
    assert reproduce.compare(first, {"a": "1"}, {})["verdict"] == "different"


def test_every_output_is_compared(tmp_path):
    outs = [{"path": path, "md5": path} for path in ("metrics/train.json", "data/models")]
    (tmp_path / "dvc.lock").write_text(json.dumps({"stages": {"train": {"outs": outs}}}))
    assert reproduce.output_hashes(tmp_path / "dvc.lock") == {out["path"]: out["md5"] for out in outs}


@pytest.mark.slow
def test_two_runs_have_the_same_bytes_and_a_time_in_an_output_is_noticed(tmp_path):
    workspace = Workspace(tmp_path / "repository")
    workspace.make_small()
    workspace.commit()
    workspace.repro()
    workspace.commit()
    workspace.run("python", "src", "reproduce")
    result = json.loads((workspace.folder / "metrics" / "repro.json").read_text())
    assert result["verdict"] == "identical" and "data/models" in result["outputs"]
    assert all(entry["same_as_committed"] for entry in result["outputs"].values())

    path, source = workspace.folder / "src" / "audit.py", '"source": manifest["source"],'
    assert source in path.read_text()
    path.write_text(path.read_text().replace(source, f'{source} "time": __import__("time").time(),'))
    workspace.commit()
    failed = workspace.run("python", "src", "reproduce", check=False)
    assert failed.returncode == 4 and "differ in data/audit" in failed.stderr
