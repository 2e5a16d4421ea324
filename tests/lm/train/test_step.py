"""Training steps: repeatable, resumable bit for bit, the same for any micro-batch, stopped by non-finite values."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from lm.core.errors import DivergedError
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.tokens.windows import TokenWindows, model_selection_starts
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.ranks import World
from lm.train.state import TrainingState
from lm.train.step import (
    average_gradients_exactly,
    check_divergence,
    check_finite,
    compute_gradients,
    learning_rate,
    log_step,
    prefetch,
    record_validation,
    update_weights,
    validation_loss,
)
from support import ROOT
from support.model_cases import optimizer_params
from support.train_params import train_params
from support.workspace import MICRO_MODEL

CPU = torch.device("cpu")
IDS = (np.arange(3000) * 7919 % 61 % 50).astype(np.uint16)  # learnable: a fixed cycle


@dataclasses.dataclass(frozen=True)
class Tokens:
    ids: np.ndarray = dataclasses.field(default_factory=lambda: IDS)
    eot_id: int = 49


def new_state(optimizer="muon", numerics="exact") -> TrainingState:
    """Return the state of a run before its first step."""
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50), numerics)
    model.init_weights(torch.Generator().manual_seed(1))
    params = optimizer_params(optimizer, numerics=numerics)
    return TrainingState(model, build_optimizers(model, params, torch.float32))


def batch_of(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets (num_rows, 16) of a step."""
    x, y = TokenWindows(IDS, 16, num_rows, seed=1).batch(0)
    return torch.from_numpy(x), torch.from_numpy(y)


def gradient_of(model: Gemma3Model) -> torch.Tensor:
    """Return the gradients of all weights in one tensor."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def run(state: TrainingState, params: TrainParams | None = None, until: int | None = None) -> TrainingState:
    """Take the steps of src/train.py, without its validations, checkpoints and display."""
    params = params or train_params()
    windows = TokenWindows(IDS, params.seq_len, params.batch_size, seed=1)
    batches = prefetch(windows, range(state.step, params.max_steps), CPU)
    while state.step < params.max_steps and state.step != until:
        loss, grad_norm = compute_gradients(state, next(batches), params, torch.float32)
        check_finite(loss, grad_norm, state, windows, params)
        lr = learning_rate(state.step, params)
        update_weights(state, lr)
        log_step(state, loss, grad_norm, lr, params)
    return state


def validate(state: TrainingState, loss: float) -> None:
    """Record a validation with this loss."""
    record_validation(state, loss, train_params())


def same(first: TrainingState, second: TrainingState) -> bool:
    """Return True if two runs have the same weights and curves."""
    weights = zip(first.weights().values(), second.weights().values(), strict=True)
    return all(torch.equal(a, b) for a, b in weights) and first.history == second.history


# The sampled vocabulary.


# A run that is interrupted.


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_interrupted_run_has_the_bits_of_an_undisturbed_one(tmp_path, optimizer):
    """It stops after 5 steps, in the middle of a row of its curve."""
    undisturbed = run(new_state(optimizer))
    stopped = run(new_state(optimizer), until=5)
    torch.save(stopped.as_dict(), tmp_path / "state.pt")
    drawn_next = torch.rand(3)

    resumed = new_state(optimizer)
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))

    assert torch.equal(torch.rand(3), drawn_next)
    assert resumed.step == 5
    assert same(run(resumed), undisturbed)


# Micro-batches.


def test_rows_that_the_micro_batch_does_not_divide_count_alike():
    """A rank of two has six rows of a batch of twelve, and a micro-batch has four."""
    batch = batch_of(6)
    losses = []
    norms = []
    for micro_batch_size in (6, 4):
        lengths = {"batch_tokens": 16 * 12, "micro_batch_tokens": 16 * micro_batch_size}
        params = train_params(numerics="fast", **lengths)
        loss, norm = compute_gradients(new_state(numerics="fast"), batch, params, torch.float32)
        losses.append(loss)
        norms.append(norm)

    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert norms[1] == pytest.approx(norms[0], abs=1e-6)


# Gradients in exact numerics.


def test_exact_gradients_are_the_mean_over_the_rows_in_any_order_of_them():
    """They are that in float64 within 2⁻⁴⁰, rounded to float32; so the ranks may share the rows in any way."""
    num_rows = 6
    x, y = batch_of(num_rows)
    model = new_state().model
    losses = []
    gradients = []
    for row in range(num_rows):
        loss = model.loss(x[row : row + 1], y[row : row + 1])
        loss.backward()
        losses.append(loss.item())
        gradients.append(gradient_of(model).double())
        model.zero_grad()

    loss = average_gradients_exactly(model, World(), x, y, 1)

    assert loss == pytest.approx(np.mean(losses), rel=1e-12)
    mean = torch.stack(gradients).mean(dim=0)
    error = (gradient_of(model) - mean).abs()
    assert (error <= 2.0**-24 * mean.abs() + 2.0**-40).all()

    backwards = new_state().model
    loss_backwards = average_gradients_exactly(backwards, World(), x.flip(0), y.flip(0), 1)
    assert loss_backwards == loss
    assert torch.equal(gradient_of(backwards), gradient_of(model))


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_gradients_above_the_limit_are_scaled_to_it(numerics):

    def gradients(limit: float) -> tuple[torch.Tensor, float]:
        """Return all gradients of a step in one tensor, and the norm that they had before."""
        state = new_state(numerics=numerics)
        params = train_params(grad_clip=limit, numerics=numerics, micro_batch_tokens=32)
        _, norm = compute_gradients(state, batch_of(8), params, torch.float32)
        return gradient_of(state.model).double(), norm

    unlimited, norm = gradients(1e9)
    just_below_the_limit, _ = gradients(norm * 1.01)

    assert float(unlimited.norm()) == pytest.approx(norm, rel=1e-6)
    assert torch.equal(just_below_the_limit, unlimited)
    for times in (1.01, 30):
        clipped, norm_before = gradients(norm / times)

        assert norm_before == norm
        assert float(clipped.norm()) == pytest.approx(norm / times, rel=1e-5)
        assert torch.allclose(clipped, unlimited / times, rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, 1025.0, -1025.0, 1024.0, -1024.0])
def test_a_gradient_that_cannot_be_added_is_seen_in_the_norm(value):
    """Above 1,024 it does not fit into the integers in which micro-batches are added: it is never clamped."""
    model = new_state().model

    def replace_one(gradient):
        gradient = gradient.clone()
        gradient[3] = value
        return gradient

    model.norm.weight.register_hook(replace_one)

    loss = average_gradients_exactly(model, World(), *batch_of(4), 2)

    assert math.isfinite(loss), "the loss itself is right"
    if abs(value) == 1024:
        assert model.norm.weight.grad[3] == value
    else:
        assert math.isinf(exact.norm(p.grad for p in model.parameters()))


# Curves, divergence, the end of a run.


def test_a_row_of_the_curve_averages_its_interval():
    single = run(new_state(), train_params(log_every_steps=1)).history.train
    averaged = run(new_state()).history.train

    assert [row[:2] for row in averaged] == [[3, 384], [6, 768], [9, 1152], [12, 1536]]
    assert averaged[1][3] == pytest.approx(np.mean([row[3] for row in single[3:6]]))


def test_a_step_that_is_not_finite_names_its_windows():
    windows = TokenWindows(IDS, 16, 8, seed=1)
    first = windows.starts(0)[0]

    for loss, grad_norm in [(math.nan, 1.0), (2.0, math.inf)]:
        named = rf"step 0: loss {loss}, gradient norm {grad_norm}, windows \[{first}, .*lower train\.peak_lr 0\.02"
        with pytest.raises(DivergedError, match=named):
            check_finite(loss, grad_norm, new_state(), windows, train_params())
    check_finite(2.0, 1e30, new_state(), windows, train_params())


def test_a_validation_that_is_not_finite_ends_the_run():
    with pytest.raises(DivergedError, match=r"validation loss is nan at step 0; check the weights of train\.init_from"):
        validate(new_state(), math.nan)


def state_with_losses(losses: list[float]) -> TrainingState:
    """Return a state with a row of the training curve for each loss, three steps apart."""
    state = new_state()
    for number, loss in enumerate(losses, start=1):
        state.history.train.append([3 * number, 384 * number, 0.01, loss, 1.0])
    return state


def test_a_rise_above_the_lowest_loss_ends_the_run():
    params = train_params(divergence_nats=0.5)
    state = state_with_losses([5.0, 3.0])
    state.step = 9

    with pytest.raises(DivergedError, match=r"at step 9: loss 3\.750, 3\.000 before.*divergence_nats 0\.5"):
        log_step(state, 3 * 3.75, 1.0, 0.01, params)

    check_divergence(state_with_losses([5.0, 3.0, 3.5]), params)
    check_divergence(state_with_losses([3.0, 9.0]), train_params(divergence_nats=None))


def test_the_best_weights_are_kept():
    state = new_state()
    validate(state, 2.0)
    best = {name: value.clone() for name, value in state.best_weights.items()}

    run(state)
    validate(state, 3.0)
    validate(state, 2.0)  # equal is not better

    assert (state.best_loss, state.best_step) == (2.0, 0)
    assert all(torch.equal(state.best_weights[name], value) for name, value in best.items())

    validate(state, 1.0)
    assert (state.best_loss, state.best_step) == (1.0, 12)


# Validation.


class EchoModel:
    """Its loss is the id of the target; `batch_sizes` has the rows of each batch."""

    device = CPU

    def __init__(self):
        self.batch_sizes = []

    def eval(self):
        pass

    train = eval

    def token_losses(self, ids, targets):
        self.batch_sizes.append(len(targets))
        return targets.float()


@pytest.mark.usefixtures("stub_losses")
@pytest.mark.parametrize(
    ("world_size", "batch_sizes"),
    [
        (2, [[8, 4], [8]]),
        (4, [[8], [8], [4], []]),
    ],
)
def test_ranks_share_the_validation_windows(monkeypatch, world_size, batch_sizes):
    """There are 20 windows, in batches of 8."""
    tokens = Tokens(np.arange(1600).astype(np.uint16))
    params = train_params(batch_tokens=16 * 32, micro_batch_tokens=16 * 8, eval_tokens=16 * 20)
    gathered = []
    monkeypatch.setattr(World, "all_gather_losses", lambda world, losses: gathered.append(losses) or losses)
    models = [EchoModel() for _ in range(world_size)]

    for rank, model in enumerate(models):
        validation_loss(TrainingState(model, [], World(rank, world_size)), tokens, params, torch.float32)

    assert [model.batch_sizes for model in models] == batch_sizes
    starts = model_selection_starts(1600, 16 * 20, 16)
    targets = starts[:, None] + np.arange(16)
    assert np.array_equal(np.nanmax(gathered, axis=0), targets)


def test_losses_are_the_golden_ones():
    """tests/golden/losses.json; after an intended change, run: python tests/lm/train/test_step.py."""
    golden = json.loads((ROOT / "tests" / "golden" / "losses.json").read_text())

    assert golden_losses() == {name: pytest.approx(losses, abs=2e-4) for name, losses in golden.items()}


def golden_losses() -> dict[str, list[float]]:
    """Return the losses of 12 steps with each optimizer."""
    params = train_params(log_every_steps=1)
    losses = {}
    for optimizer in ("muon", "adamw"):
        rows = run(new_state(optimizer), params).history.train
        losses[optimizer] = [row[3] for row in rows]
    return losses


if __name__ == "__main__":
    path = ROOT / "tests" / "golden" / "losses.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden_losses(), indent=1) + "\n")
