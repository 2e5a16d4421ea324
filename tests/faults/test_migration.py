"""A run that is killed and goes on elsewhere: on other instructions or another processor, on two processes, on one."""

import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from lm.train.checkpoints import list_checkpoints
from support.emulation import OTHER_PROCESSORS
from support.process import wait_for
from support.train_cases import ARGUMENTS, clear, make_training, only_run, results, set_runtime
from support.workspace import Workspace

MAX_STEPS = 400
NATIVE = [sys.executable]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A small copy with token files, whose run has several hundred steps, a checkpoint at each, in exact numerics."""
    workspace = make_training(tmp_path_factory.mktemp("migration") / "ws")
    workspace.change(**{"train.micro_batch_tokens": 256, "train.max_tokens": 512 * MAX_STEPS})  # for two processes
    workspace.change(**{"train.numerics": "exact"})
    return workspace


def start(python: list[str], **variables: str) -> psutil.Popen:
    """Start the stage with this Python."""
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"} | variables
    return psutil.Popen([*python, "src/train.py", *ARGUMENTS], env=environment, stdout=subprocess.DEVNULL)


def newest_step() -> int:
    """Return the step of the newest checkpoint, 0 if there is none yet."""
    with contextlib.suppress(ValueError, FileNotFoundError):  # there is no run yet
        return max((checkpoint.step for checkpoint in list_checkpoints(only_run())), default=0)
    return 0


def train_until_killed(python: list[str], num_steps: int, **variables: str) -> None:
    """Train at least `num_steps` more steps, and kill -9 all processes in the middle of the run."""
    end = newest_step() + num_steps
    stage = start(python, **variables)
    try:
        wait_for(lambda: newest_step() >= end or stage.poll() is not None)
    finally:
        processes = [stage, *stage.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)
    assert stage.wait() == -signal.SIGKILL, "it ended before it could be killed"
    assert end <= newest_step() < MAX_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(("python", "variables"), OTHER_PROCESSORS)
def test_a_run_that_is_killed_and_goes_on_elsewhere_has_every_bit(workspace: Workspace, monkeypatch, python, variables):
    monkeypatch.chdir(workspace.folder)
    clear()
    set_runtime(checkpoint_every_s=0, num_processes=1)
    assert start(NATIVE).wait() == 0
    undisturbed = results()
    clear()

    train_until_killed(NATIVE, num_steps=30)
    train_until_killed(python, num_steps=3, **variables)
    set_runtime(checkpoint_every_s=0, num_processes=2)
    train_until_killed(NATIVE, num_steps=30)
    set_runtime(checkpoint_every_s=0, num_processes=1)
    assert start(NATIVE).wait() == 0
    assert results() == undisturbed
