"""`dvc repro` killed or interrupted, and stages that fail: nothing wrong is recorded, and one command recovers."""

import os
import shutil
import signal
import subprocess

import pytest

from lm.core.params import read_yaml
from support.process import CAP_S, hold_at_rename, living_members, started, wait_for
from support.stages import STAGES, outputs_of
from support.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(finished, tmp_path):
    """The small project, of whose run nothing is recorded."""
    workspace = Workspace(tmp_path / "copy", finished)
    (workspace.folder / "dvc.lock").unlink()
    shutil.rmtree(workspace.folder / ".dvc/cache/runs")
    shutil.rmtree(workspace.folder / ".runs")
    return workspace


def start_and_hold(workspace: Workspace, stage: str) -> subprocess.Popen:
    """Start `dvc repro`, and return when the stage is about to publish its first output.

    It takes an interrupt even if the tests ignore it, as commands do that a shell starts in the background.
    """
    environment = hold_at_rename(f"*/{outputs_of(stage)[0]}", workspace.folder)
    repro = started(
        "dvc",
        "repro",
        stage,
        cwd=workspace.folder,
        env=workspace.environment | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: (workspace.folder / "held").exists() or repro.poll() is not None)
    assert repro.poll() is None
    return repro


def is_recorded(workspace: Workspace, stage: str) -> bool:
    """Return True if dvc.lock has the stage."""
    lock = workspace.folder / "dvc.lock"
    return lock.exists() and stage in read_yaml(lock)["stages"]


def is_in_run_cache(workspace: Workspace, script: str) -> bool:
    """Return True if DVC's run cache has a run of the script of a stage."""
    records = (workspace.folder / ".dvc" / "cache" / "runs").rglob("*")
    return any(script in path.read_text() for path in records if path.is_file())


def test_a_failed_or_interrupted_stage_is_not_recorded_and_one_command_recovers(workspace):
    data = workspace.folder / "data"

    # It fails.
    workspace.change(**{"sources.small.fetch.split.validation_fraction": -1})
    failed = workspace.run("dvc", "repro", "fetch", check=False)
    workspace.change(**{"sources.small.fetch.split.validation_fraction": 0.1})
    assert failed.returncode == 255
    assert "exited with 2" in failed.stderr
    (error,) = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert "validation_fraction is -1" in error

    # It is interrupted.
    repro = start_and_hold(workspace, "fetch")
    os.killpg(repro.pid, signal.SIGINT)
    assert repro.wait(CAP_S) != 0

    # Nothing of this is recorded.
    assert not is_recorded(workspace, "fetch")
    assert not is_in_run_cache(workspace, "src/fetch.py")
    assert not (data / "raw").exists()

    # One command recovers.
    assert workspace.repro("fetch") == {"fetch"}
    assert [path.name for path in data.glob(".raw*")] == [".raw.lock"]
    assert is_recorded(workspace, "fetch")
    assert is_in_run_cache(workspace, "src/fetch.py")
    assert workspace.repro("fetch") == set()


# Stages that go on, because DVC alone is killed. Until one has ended, the next one refuses with exit code 75.
GO_ON = {"fetch", "tokenize_train", "eval"}


def test_after_kill_9_in_any_stage_one_command_recovers(workspace, finished):
    for stage in [stage for stage in STAGES if stage != "plot"]:
        repro = start_and_hold(workspace, stage)
        kill = os.kill if stage in GO_ON else os.killpg
        kill(repro.pid, signal.SIGKILL)
        repro.wait()
        assert not is_recorded(workspace, stage)
        if stage in GO_ON:
            refused = workspace.run("dvc", "repro", stage, check=False)
            assert "is writing it" in refused.stderr
            (workspace.folder / "go").touch()
            wait_for(lambda leader=repro.pid: not living_members(leader))
        workspace.repro(stage)

    assert workspace.repro() == {"plot"}, "what was recovered does not run again"
    assert read_yaml(workspace.folder / "dvc.lock") == read_yaml(finished / "dvc.lock")
