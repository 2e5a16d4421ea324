"""dvc.lock against the files that are here: changed code, former runs, and conflicts of a merge."""

import pytest

from extras.compress import compress
from lm.core.errors import IntegrityError
from support.workspace import Workspace
from tools import generate
from tools.common.lock import changed_code, parse_lock, read_lock, stages_of_former_runs
from tools.export_hf import cli as export_hf


@pytest.fixture
def ran(finished, tmp_path, monkeypatch) -> Workspace:
    """The small pipeline after its run, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    monkeypatch.chdir(workspace.folder)
    return workspace


def add_comment(path: str) -> None:
    with open(path, "a") as file:
        file.write("# changed\n")


def test_code_has_the_hashes_that_dvc_records(ran):
    assert changed_code(read_lock()) == []


def test_changed_files_are_named_and_without_git_their_folders(ran):
    add_comment("src/lm/train/step.py")
    add_comment("src/eval.py")
    assert changed_code(read_lock()) == ["src/lm/train/step.py", "src/eval.py"]

    ran.run("git", "commit", "-qam", "changed")
    assert changed_code(read_lock()) == ["src/lm/train", "src/eval.py"]


COMMANDS = [
    pytest.param(generate.main, ["One", "--max_new_tokens", "2"], id="generate"),
    pytest.param(export_hf.main, ["exported"], id="export_hf"),
    pytest.param(compress.main, ["LICENSE", "license.rlmc"], id="compress"),
]


@pytest.mark.parametrize(("main", "arguments"), COMMANDS)
def test_weights_that_run_through_other_code_are_warned_of(ran, capsys, main, arguments):
    add_comment("src/lm/model/gemma3.py")

    assert main(arguments) == 0

    warning = "warning: src/lm/model/gemma3.py changed since data/models was trained; `dvc repro` trains it again"
    assert warning in capsys.readouterr().err


def test_code_through_which_no_weights_go_is_not_warned_of(ran, capsys):
    add_comment("src/lm/train/step.py")

    assert generate.main(["One", "--max_new_tokens", "2"]) == 0

    assert "warning" not in capsys.readouterr().err


def stage(reads: dict[str, str], writes: dict[str, str]) -> dict:
    """Return a stage of a lock, from path → MD5."""
    deps = [{"path": path, "md5": md5} for path, md5 in reads.items()]
    outs = [{"path": path, "md5": md5} for path, md5 in writes.items()]
    return {"deps": deps, "outs": outs}


def test_stages_after_one_that_read_a_former_file_are_of_the_former_run_too():
    stages = {
        "text": stage({"code": "1"}, {"text": "new"}),
        "audit": stage({"text": "new"}, {"audit": "2"}),
        "train": stage({"text": "old"}, {"model": "3"}),
        "eval": stage({"model": "3", "audit": "2"}, {"score": "4"}),
    }

    assert stages_of_former_runs({"stages": stages}) == ["train", "eval"]
    assert stages_of_former_runs({"stages": {"text": stages["text"], "audit": stages["audit"]}}) == []


@pytest.mark.parametrize("text", ["", "a: [", "stages: 3", "[]"])
def test_a_broken_lock_is_refused(text):
    with pytest.raises(IntegrityError, match=r"dvc.lock: not a list of stages .*; run `git restore dvc.lock`"):
        parse_lock(text, "dvc.lock")
