"""The numbers that a run prints: each line is written here by hand."""

from types import SimpleNamespace

import pytest
import torch

from lm.train import progress
from lm.train.preflight import GIB, Plan
from lm.train.progress import Progress, print_end, print_plan, shows_bar
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
    return SimpleNamespace(step=step, world=World(0, 2), history=History())


def validate(state: SimpleNamespace, shown: Progress, step: int, val_loss: float) -> None:
    """Let a run be at a step, and show it."""
    state.step = step
    state.history.validation.append([step, step * 512, val_loss])
    shown.show_validation()


@pytest.mark.parametrize(
    ("first_step", "step", "seconds", "line"),
    [
        (0, 0, 3, "step 0 of 20, 0 tokens, validation loss 2.3457"),
        (0, 10, 60, "step 10 of 20, 5,120 tokens, validation loss 2.3457, 85 tokens/s, 1.0 min left"),
        (5, 10, 60, "step 10 of 20, 5,120 tokens, validation loss 2.3457, 43 tokens/s, 2.0 min left"),
    ],
)
def test_a_validation_prints_speed_and_time_left_of_this_process(clock, capsys, first_step, step, seconds, line):
    state = state_at(first_step)
    shown = Progress(PLAN, state, PARAMS)

    clock.append(clock[0] + seconds)
    validate(state, shown, step, 2.34567)

    assert capsys.readouterr() == (line + "\n", "")


def test_a_line_has_the_newest_training_loss_once(clock, capsys):
    state = state_at(0)
    shown = Progress(PLAN, state, PARAMS)
    clock.append(clock[0] + 1)

    state.history.train += [[1, 512, 0.1, 5.5, 1.0], [2, 1024, 0.1, 4.25, 1.0]]
    validate(state, shown, 2, 3.0)
    validate(state, shown, 3, 2.0)

    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("step 2 of 20, 1,024 tokens, training loss 4.2500, validation loss 3.0000, ")
    assert second.startswith("step 3 of 20, 1,536 tokens, validation loss 2.0000, ")


def test_a_bar_shows_tokens_and_the_validation_loss(clock, monkeypatch, capsys):
    postfixes = []
    monkeypatch.setattr(progress, "shows_bar", lambda world: True)
    monkeypatch.setattr(Progress, "set_postfix", lambda self, **shown: postfixes.append(shown))
    state = state_at(5)
    shown = Progress(PLAN, state, PARAMS)
    assert (shown.n, shown.total) == (5 * 512, 10_240)

    clock.append(clock[0] + 60)
    validate(state, shown, 15, 2.34567)

    assert postfixes == [{"val_loss": "2.346"}]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("rank", "is_terminal", "shows"), [(0, True, True), (0, False, False), (1, True, False)])
def test_the_main_rank_alone_shows_a_bar_on_a_terminal(monkeypatch, rank, is_terminal, shows):
    monkeypatch.setattr(progress.sys, "stderr", SimpleNamespace(isatty=lambda: is_terminal))

    assert shows_bar(World(rank, 2)) is shows


def test_the_end_of_a_run_prints_its_time_and_its_best_loss(capsys):
    seconds = {"training": 90.0, "validation": 24.0, "saving": 6.0}
    state = SimpleNamespace(seconds=seconds, best_loss=2.34567, best_step=8)

    print_end(state)

    assert capsys.readouterr().out.splitlines() == [
        "minutes      1.5 training, 0.4 validation, 0.1 saving",
        "best validation loss 2.3457 nats/token at step 8",
    ]


PLAN_LINES = "device       cpu, 3 threads\ndtype        float32\nsteps        20\nprocesses    8, 4 on this host\n"
PLAN_WARNINGS = "warning: a setting is unusual\nwarning: memory is short\nwarning: a core is busy\n"


@pytest.mark.parametrize(("rank", "out", "err"), [(0, PLAN_LINES, PLAN_WARNINGS), (1, "", "")])
def test_the_main_rank_prints_the_size_of_the_run_and_all_warnings(monkeypatch, capsys, rank, out, err):
    monkeypatch.setattr(progress.preflight, "warnings", lambda *given: ["a setting is unusual"])
    training = SimpleNamespace(
        run=SimpleNamespace(params=None, config=None),
        device=torch.device("cpu"),
        dtype=torch.float32,
        plan=SimpleNamespace(lines=lambda: ["steps        20"]),
        state=SimpleNamespace(world=World(rank, 8, local_world_size=4)),
        memory_warnings=["memory is short"],
    )
    threads = SimpleNamespace(threads=3, warnings=lambda: ["a core is busy"])

    print_plan(training, threads)

    assert capsys.readouterr() == (out, err)


@pytest.mark.parametrize(("muon_flops", "in_muon"), [(0.0, ""), (2.5e8, ", 5% of it in Muon")])
def test_the_size_of_a_run_is_printed(muon_flops, in_muon):
    plan = SimpleNamespace(
        numerics="exact",
        num_parameters=1_234_567,
        max_steps=2_000,
        max_tokens=1_024_000,
        epochs=2.496,
        train_tokens=410_256,
        flops_per_token=9_260_000.0,
        flops_per_step=5e9,
        muon_flops_per_step=muon_flops,
        memory_bytes=2.26 * GIB,
    )

    assert Plan.lines(plan) == [
        "numerics     exact",
        "parameters   1,234,567",
        "steps        2,000, 1,024,000 tokens = 2.50 epochs of 410,256",
        f"work         9.3 MFLOP per token, 10.0 TFLOP in all{in_muon}",
        "memory       about 2.3 GiB",
    ]
