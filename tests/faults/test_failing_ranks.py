"""Ranks that the train stage started itself: killed, hung, asked to stop, refused."""

import os
import signal
from pathlib import Path

import pytest

from support.process import living_members, wait_for
from support.rank_cases import sabotage_ranks
from support.refusal import refused
from support.train_cases import (
    Stage,
    fresh_training,
    newest_step,
    results,
    run_stage,
    set_runtime,
)


@pytest.fixture
def workspace(template):
    """The working directory, where the stage starts two ranks and saves a checkpoint at every step."""
    with fresh_training(template, num_processes=2):
        yield template


def held():
    """Return the process ids of both ranks, once both are held."""
    paths = [Path(f"held{rank}") for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in paths))
    return [int(path.read_text()) for path in paths]


def wait_all_gone(pids):
    wait_for(lambda: not any(living_members(pid) for pid in pids))


def go_on_alone(step, undisturbed):
    """Check that the checkpoint of `step` is intact, and that one process ends the run with undisturbed bits."""
    assert newest_step() == step
    set_runtime(num_processes=1)
    ended = run_stage()
    assert ended.code == 0, ended.err
    assert f"resumed at step {step} " in ended.out
    found = results()
    for name in ("data/models/best_model_params.pt", "data/models/last_model_params.pt", "plots/validation.csv"):
        assert found[name] == undisturbed[name], name


def test_a_killed_rank_ends_all_and_the_last_checkpoint_is_valid(workspace, undisturbed):
    stage = Stage(sabotage_ranks, "hold_at", 4)
    pids = held()

    os.kill(pids[1], signal.SIGKILL)
    ended = stage.end()
    wait_all_gone(pids)

    refused(ended.code, ended.err, 5, "rank 1 of 2 was ended by SIGKILL", "run the same command again")
    assert ended.err.count("error:") == 1
    assert not Path("data/models").exists()
    go_on_alone(3, undisturbed)


@pytest.mark.slow
def test_a_hung_rank_ends_all_after_the_timeout(workspace, undisturbed):
    ended = run_stage(sabotage_ranks, "hang_at", 1, 4)

    refused(ended.code, ended.err, 5, "rank 0 of 2 lost another rank, or had no answer within train.timeout_s")
    assert ended.err.count("error:") == 1
    go_on_alone(3, undisturbed)


@pytest.mark.slow
def test_ranks_stop_with_a_checkpoint_when_their_stage_is_killed(workspace, undisturbed):
    stage = Stage(sabotage_ranks, "hold_at", 4)
    pids = held()

    stage.process.kill()
    assert stage.end().code == -signal.SIGKILL
    Path("go").touch()

    wait_all_gone(pids)
    go_on_alone(4, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "sabotage"),
    [
        (signal.SIGINT, 130, "hold_at"),
        (signal.SIGTERM, 143, "hold_at_and_write_slowly_beside_training"),
    ],
)
def test_a_signal_to_the_stage_saves_a_checkpoint_on_all_ranks(workspace, undisturbed, number, code, sabotage):
    """They wait for the thread of the main rank that writes the checkpoint."""
    set_runtime(checkpoint_every_s=3600)
    stage = Stage(sabotage_ranks, sabotage, 5)
    pids = held()

    os.kill(stage.process.pid, number)
    wait_for(lambda: "stopping after this step" in stage.err or not stage.process.is_alive())
    Path("go").touch()
    ended = stage.end()
    wait_all_gone(pids)

    refused(ended.code, ended.err, code, f"all ranks were stopped ({number.name})", "run the same command again")
    assert ended.err.count("error:") == 1
    assert ended.err.count("stopping after") == 1
    go_on_alone(5, undisturbed)


@pytest.mark.slow
def test_a_second_signal_to_the_stage_ends_all_ranks(workspace):
    """They are held in a step, which the first signal lets them finish."""
    stage = Stage(sabotage_ranks, "hold_at", 4)
    pids = held()

    os.kill(stage.process.pid, signal.SIGTERM)
    wait_for(lambda: "send the signal again" in stage.err or not stage.process.is_alive())
    os.kill(stage.process.pid, signal.SIGTERM)
    ended = stage.end()
    wait_all_gone(pids)

    refused(ended.code, ended.err, 143, "all ranks were stopped (SIGTERM)")
    assert newest_step() == 3
