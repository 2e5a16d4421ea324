"""A run that is killed and goes on elsewhere: on other instructions or another processor, on two processes, on one."""

import os
import subprocess
import sys

import pytest

from support.emulation import OTHER_PROCESSORS
from support.process import end_group, hold_at, started, wait_for
from support.train_cases import ARGUMENTS, clear, make_training, newest_step, results, set_runtime
from support.workspace import Workspace

NATIVE = [sys.executable]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A small copy with token files, whose run has 40 steps, a checkpoint at each, in exact numerics."""
    workspace = make_training(tmp_path_factory.mktemp("migration") / "ws")
    workspace.change(**{"train.micro_batch_tokens": 256, "train.max_tokens": 512 * 40})  # for two processes
    workspace.change(**{"train.numerics": "exact"})
    return workspace


def start(python: list[str], **variables: str) -> subprocess.Popen:
    """Start the stage with this Python."""
    environment = {name: value for name, value in os.environ.items() if name != "DVC_ROOT"} | variables
    return started(*python, "src/train.py", *ARGUMENTS, env=environment, stdout=subprocess.DEVNULL)


def train_until_killed(workspace: Workspace, python: list[str], step: int, **variables: str) -> None:
    """Train, and kill -9 all processes before the checkpoint of this step counts."""
    held = hold_at(f"*/checkpoint-{step:09d}.json", workspace.folder)
    stage = start(python, **variables, **held)
    wait_for(lambda: (workspace.folder / "held").exists() or stage.poll() is not None)
    end_group(stage.pid)
    assert newest_step() == step - 1


@pytest.mark.slow
@pytest.mark.parametrize(("python", "variables"), OTHER_PROCESSORS)
def test_a_run_that_is_killed_and_goes_on_elsewhere_has_every_bit(workspace: Workspace, monkeypatch, python, variables):
    monkeypatch.chdir(workspace.folder)
    clear()
    set_runtime(checkpoint_every_s=0, num_processes=1)
    assert start(NATIVE).wait() == 0
    undisturbed = results()
    clear()

    train_until_killed(workspace, NATIVE, 11)
    train_until_killed(workspace, python, 14, **variables)
    set_runtime(checkpoint_every_s=0, num_processes=2)
    train_until_killed(workspace, NATIVE, 25)
    set_runtime(checkpoint_every_s=0, num_processes=1)
    assert start(NATIVE).wait() == 0
    assert results() == undisturbed
