"""`dvc repro` killed or interrupted, and stages that fail: nothing wrong is recorded, and one command recovers."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from support.process import CAP_S, started, wait_for
from support.stages import STAGES, TINY, module_and_arguments, write_texts
from support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path):
    """A small pipeline on own text, of which nothing has run; its first stage takes a second or two."""
    workspace = Workspace(tmp_path)
    workspace.change(**TINY)
    write_texts(tmp_path / "data/local/texts.jsonl", 20_000)
    workspace.commit()
    return workspace


def start_repro(workspace: Workspace, stage: str) -> subprocess.Popen:
    """`dvc repro` in a process group of its own, with its stages; what it prints goes to a file.

    It takes an interrupt even if the tests ignore it, as commands do that a shell starts in the background. The
    programs are the real ones: those of the fast tests run in the group of another process.
    """
    real_programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with open(workspace.folder / "repro.txt", "w") as file:
        return started(
            "dvc",
            "repro",
            stage,
            cwd=workspace.folder,
            env=workspace.environment | {"PATH": real_programs},
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def stage_of(repro: subprocess.Popen, stage: str) -> psutil.Process | None:
    """The process of a stage below `dvc repro`, None if there is none."""
    module, _ = module_and_arguments(stage)
    try:
        for child in psutil.Process(repro.pid).children(recursive=True):
            if f"src/{module}.py" in child.cmdline():
                return child
    except psutil.NoSuchProcess:
        pass
    return None


def kill_in(workspace: Workspace, stage: str, after_s: float, group: bool) -> psutil.Process | None:
    """kill -9 so many seconds after a stage has begun: the whole process group, or DVC alone; return the stage."""
    repro = start_repro(workspace, stage)
    wait_for(lambda: stage_of(repro, stage) or repro.poll() is not None)
    process = stage_of(repro, stage)
    time.sleep(after_s)
    assert repro.poll() is None, (workspace.folder / "repro.txt").read_text()
    if group:
        os.killpg(repro.pid, signal.SIGKILL)
    else:
        repro.kill()
    repro.wait()
    return process


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def lock_of(workspace: Workspace) -> str:
    path = workspace.folder / "dvc.lock"
    return path.read_text() if path.exists() else ""


def is_recorded(workspace: Workspace, stage: str) -> bool:
    """Return True if dvc.lock has the stage."""
    return f"\n  {stage}:" in lock_of(workspace)


def is_in_run_cache(workspace: Workspace, script: str) -> bool:
    """Return True if DVC's run cache has a run of the script of a stage."""
    records = (workspace.folder / ".dvc" / "cache" / "runs").rglob("*")
    return any(script in path.read_text() for path in records if path.is_file())


def test_a_failed_or_interrupted_or_killed_stage_is_not_recorded_and_one_command_recovers(workspace):
    data = workspace.folder / "data"

    # It fails.
    workspace.change(**{"sources.local.fetch.split.validation_fraction": -1})
    failed = workspace.run("dvc", "repro", "fetch", check=False)
    workspace.change(**{"sources.local.fetch.split.validation_fraction": 0.2})
    assert failed.returncode == 255
    assert "exited with 2" in failed.stderr
    (error,) = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert "validation_fraction is -1" in error

    # It is interrupted past its imports, in which Python may lose an interrupt.
    repro = start_repro(workspace, "fetch")
    wait_for(lambda: list(data.glob(".raw.*.tmp")))
    os.killpg(repro.pid, signal.SIGINT)
    assert repro.wait(CAP_S) != 0

    # It is killed together with DVC.
    kill_in(workspace, "fetch", 0.3, group=True)

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


def recorded_hashes(workspace: Workspace) -> dict[tuple[str, str], str]:
    """Return what dvc.lock records of the outputs of all stages."""
    stages = yaml.safe_load(lock_of(workspace))["stages"]
    hashes = {}
    for stage, entry in stages.items():
        for out in entry["outs"]:
            hashes[stage, out["path"]] = out["md5"]
    return hashes


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_after_kill_9_in_any_stage_one_command_recovers(finished, tmp_path, group):
    """If DVC alone is killed, its stage goes on. Until it has ended, the next one may refuse with exit code 75."""
    workspace = Workspace(tmp_path / "copy", finished)
    undisturbed = recorded_hashes(workspace)
    (workspace.folder / "dvc.lock").unlink()
    shutil.rmtree(workspace.folder / ".dvc/cache/runs")
    shutil.rmtree(workspace.folder / ".runs")

    for stage in [stage for stage in STAGES if stage != "plot"]:
        process = kill_in(workspace, stage, 0.2, group)
        assert not is_recorded(workspace, stage)
        next_run = workspace.run("dvc", "repro", stage, check=False)
        if next_run.returncode != 0:
            assert not group
            assert "is writing it" in next_run.stderr
            wait_for(lambda process=process: has_ended(process))
            workspace.repro(stage)

    assert workspace.repro() == {"plot"}, "what was recovered does not run again"
    assert recorded_hashes(workspace) == undisturbed
