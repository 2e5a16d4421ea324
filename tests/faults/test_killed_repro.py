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

from support.stages import STAGES, TINY, module_and_arguments, write_texts
from support.train_cases import wait_for
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
        return subprocess.Popen(
            ["dvc", "repro", stage],
            cwd=workspace.folder,
            env=workspace.environment | {"PATH": real_programs},
            start_new_session=True,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def stage_of(repro: subprocess.Popen, stage: str) -> psutil.Process | None:
    """The process of a stage below `dvc repro`, None if there is none."""
    script = f"src/{module_and_arguments(stage)[0]}.py"
    try:
        children = psutil.Process(repro.pid).children(recursive=True)
        return next((child for child in children if script in child.cmdline()), None)
    except psutil.NoSuchProcess:
        return None


def kill_in(workspace: Workspace, stage: str, after_s: float, group: bool) -> psutil.Process | None:
    """kill -9 so many seconds after a stage has begun: the whole process group, or DVC alone; return the stage."""
    repro = start_repro(workspace, stage)
    wait_for(lambda: stage_of(repro, stage) or repro.poll() is not None)
    process = stage_of(repro, stage)
    time.sleep(after_s)
    assert repro.poll() is None, (workspace.folder / "repro.txt").read_text()
    os.killpg(repro.pid, signal.SIGKILL) if group else repro.kill()
    repro.wait()
    return process


def lock_of(workspace: Workspace) -> str:
    path = workspace.folder / "dvc.lock"
    return path.read_text() if path.exists() else ""


def runs_of_fetch(workspace: Workspace) -> list[Path]:
    """Return the records of the stage in DVC's run cache."""
    records = (workspace.folder / ".dvc" / "cache" / "runs").rglob("*")
    return [path for path in records if path.is_file() and "src/fetch.py" in path.read_text()]


def test_a_failed_or_interrupted_or_killed_stage_is_not_recorded_and_one_command_recovers(workspace):
    data = workspace.folder / "data"
    # It fails.
    workspace.change(**{"sources.local.fetch.split.validation_fraction": -1})
    done = workspace.run("dvc", "repro", "fetch", check=False)
    assert done.returncode == 255 and "exited with 2" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "validation_fraction is -1" in errors[0]
    workspace.change(**{"sources.local.fetch.split.validation_fraction": 0.2})

    # It is interrupted past its imports, in which Python may lose an interrupt.
    repro = start_repro(workspace, "fetch")
    wait_for(lambda: list(data.glob(".raw.*.tmp")))
    os.killpg(repro.pid, signal.SIGINT)
    assert repro.wait(60) != 0

    # It is killed together with DVC.
    kill_in(workspace, "fetch", 0.3, group=True)
    assert "\n  fetch:" not in lock_of(workspace) and not runs_of_fetch(workspace) and not (data / "raw").exists()

    assert workspace.repro("fetch") == {"fetch"}
    assert [path.name for path in data.glob(".raw*")] == [".raw.lock"]
    assert "\n  fetch:" in lock_of(workspace) and runs_of_fetch(workspace)
    assert workspace.repro("fetch") == set()


def recorded(workspace: Workspace) -> dict[tuple[str, str], str]:
    """What dvc.lock records of the stages' outputs."""
    stages = yaml.safe_load(lock_of(workspace))["stages"]
    return {(stage, out["path"]): out["md5"] for stage, entry in stages.items() for out in entry["outs"]}


@pytest.mark.slow
@pytest.mark.parametrize("group", [True, False])
def test_after_kill_9_in_any_stage_one_command_recovers(finished, tmp_path, group):
    """If DVC alone is killed, its stage goes on. Until it has ended, the next one may refuse with exit code 75."""
    workspace = Workspace(tmp_path / "copy", finished)
    undisturbed = recorded(workspace)
    (workspace.folder / "dvc.lock").unlink()
    for name in (".dvc/cache/runs", ".runs"):
        shutil.rmtree(workspace.folder / name)
    for stage in [stage for stage in STAGES if stage != "plot"]:
        process = kill_in(workspace, stage, 0.2, group)
        assert f"  {stage}:" not in lock_of(workspace)
        done = workspace.run("dvc", "repro", stage, check=False)
        if done.returncode:
            assert not group and "is writing it" in done.stderr, done.stderr
            wait_for(lambda process=process: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
            workspace.repro(stage)
    assert workspace.repro() == {"plot"}, "what was recovered does not run again"
    assert recorded(workspace) == undisturbed
