"""The numbers that a run prints: each line is written here by hand."""

from types import SimpleNamespace

import pytest
import torch

from lm.train import progress
from lm.train.progress import Progress, print_end, print_plan
from lm.train.ranks import World
from lm.train.state import History

# 20 steps of 512 tokens.
PLAN = SimpleNamespace(max_steps=20, max_tokens=10_240)
PARAMS = SimpleNamespace(batch_tokens=512)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the module: a list whose last entry is the time in seconds."""
    seconds = [1000.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: seconds[-1]))
    return seconds


def state_at(step: int) -> SimpleNamespace:
    return SimpleNamespace(step=step, world=World(), history=History())


def validate(state: SimpleNamespace, shown: Progress, step: int, val_loss: float) -> None:
    """Let a run be at a step, and show it."""
    state.step = step
    state.history.validation.append([step, step * 512, val_loss])
    shown.show_validation()


def test_a_validation_prints_losses_and_the_speed_and_time_left_of_this_process(clock, capsys):
    state = state_at(5)
    shown = Progress(PLAN, state, PARAMS)
    validate(state, shown, 5, 2.34567)
    clock.append(clock[0] + 60)
    state.history.train += [[6, 3072, 0.1, 5.5, 1.0], [10, 5120, 0.1, 4.25, 1.0]]
    validate(state, shown, 10, 3.0)
    validate(state, shown, 15, 2.0)

    assert capsys.readouterr().out.splitlines() == [
        "step 5 of 20, 2,560 tokens, validation loss 2.3457",
        "step 10 of 20, 5,120 tokens, training loss 4.2500, validation loss 3.0000, 43 tokens/s, 2.0 min left",
        "step 15 of 20, 7,680 tokens, validation loss 2.0000, 85 tokens/s, 0.5 min left",
    ]


def test_the_end_of_a_run_prints_its_time_and_its_best_loss(capsys):
    seconds = {"training": 90.0, "validation": 24.0, "saving": 6.0}
    state = SimpleNamespace(seconds=seconds, best_loss=2.34567, best_step=8)

    print_end(state)

    assert capsys.readouterr().out.splitlines() == [
        "minutes      1.5 training, 0.4 validation, 0.1 saving",
        "best validation loss 2.3457 nats/token at step 8",
    ]


def test_all_warnings_are_printed_before_a_run(monkeypatch, capsys):
    monkeypatch.setattr(progress.preflight, "warnings", lambda *given: ["a setting is unusual"])
    training = SimpleNamespace(
        run=SimpleNamespace(params=None, config=None),
        device=torch.device("cpu"),
        dtype=torch.float32,
        plan=SimpleNamespace(lines=list),
        state=SimpleNamespace(world=World()),
        memory_warnings=["memory is short"],
    )
    threads = SimpleNamespace(threads=3, warnings=lambda: ["a core is busy"])

    print_plan(training, threads)

    assert capsys.readouterr().err.splitlines() == [
        "warning: a setting is unusual",
        "warning: memory is short",
        "warning: a core is busy",
    ]
