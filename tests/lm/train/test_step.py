"""Training steps: golden losses, the same gradients for any micro-batch, stopped by values that are not finite."""

import json
import math

import numpy as np
import pytest
import torch

from lm.core.errors import DivergedError
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.tokens.windows import TokenWindows
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
)
from support import ROOT
from support.model_cases import optimizer_params
from support.train_params import train_params
from support.workspace import MICRO_MODEL

CPU = torch.device("cpu")
IDS = (np.arange(3000) * 7919 % 61 % 50).astype(np.uint16)  # learnable: a fixed cycle


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


def averaged_exactly(x: torch.Tensor, y: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradients of rows (B, T), of which each is a micro-batch."""
    model = new_state().model
    loss = average_gradients_exactly(model, World(), x, y, 1)
    return loss, gradient_of(model)


# Micro-batches.


def test_rows_that_the_micro_batch_does_not_divide_count_alike():
    """A rank of two has six rows of a batch of twelve, and a micro-batch has four."""
    found = []
    for micro_batch_size in (6, 4):
        lengths = {"batch_tokens": 16 * 12, "micro_batch_tokens": 16 * micro_batch_size}
        params = train_params(numerics="fast", **lengths)
        found.append(compute_gradients(new_state(numerics="fast"), batch_of(6), params, torch.float32))

    assert found[1] == pytest.approx(found[0], abs=1e-6)


# Gradients in exact numerics.


def test_exact_gradients_are_the_mean_over_the_rows_in_any_order_of_them():
    """They are that in float64 within 2⁻⁴⁰, rounded to float32; so the ranks may share the rows in any way."""
    x, y = batch_of(6)
    losses = []
    gradients = []
    for row in range(6):
        loss, gradient = averaged_exactly(x[row : row + 1], y[row : row + 1])
        losses.append(loss)
        gradients.append(gradient.double())

    loss, gradient = averaged_exactly(x, y)

    assert loss == pytest.approx(np.mean(losses), rel=1e-12)
    mean = torch.stack(gradients).mean(dim=0)
    error = (gradient - mean).abs()
    assert (error <= 2.0**-24 * mean.abs() + 2.0**-40).all()

    loss_backwards, gradient_backwards = averaged_exactly(x.flip(0), y.flip(0))
    assert loss_backwards == loss
    assert torch.equal(gradient_backwards, gradient)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_gradients_above_the_limit_are_scaled_to_it(numerics):

    def gradients(limit: float) -> tuple[torch.Tensor, float]:
        """Return all gradients of a step in one tensor, and the norm that they had before."""
        state = new_state(numerics=numerics)
        params = train_params(grad_clip=limit, numerics=numerics, micro_batch_tokens=32)
        _, norm = compute_gradients(state, batch_of(8), params, torch.float32)
        return gradient_of(state.model), norm

    unlimited, norm = gradients(1e9)

    assert float(unlimited.norm()) == pytest.approx(norm, rel=1e-6)
    for times in (0.99, 1.01, 30):
        clipped, norm_before = gradients(norm / times)

        assert norm_before == norm
        assert torch.allclose(clipped, unlimited / max(1, times), rtol=1e-5)


@pytest.mark.parametrize("value", [math.nan, 1025.0, -1025.0, 1024.0, -1024.0])
def test_a_gradient_that_cannot_be_added_is_seen_in_the_norm(value):
    """Above 1,024 it does not fit into the integers in which micro-batches are added: it is never clamped."""
    model = new_state().model
    model.norm.weight.register_hook(lambda gradient: torch.full_like(gradient, value))

    loss = average_gradients_exactly(model, World(), *batch_of(4), 2)

    assert math.isfinite(loss), "the loss itself is right"
    if abs(value) == 1024:
        assert (model.norm.weight.grad == value).all()
    else:
        assert math.isinf(exact.norm(p.grad for p in model.parameters()))


# Curves, divergence, the end of a run.


def test_a_row_of_the_curve_averages_its_interval():
    state = new_state()

    for loss in (9.0, 5.0, 4.0, 3.0, 5.0, 7.0):
        state.step += 1
        log_step(state, loss, 2.0, 0.01, train_params(log_every_steps=3))

    assert state.history.train == [[3, 384, 0.01, 6.0, 2.0], [6, 768, 0.01, 5.0, 2.0]]


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (2.0, math.inf)])
def test_a_step_that_is_not_finite_names_its_windows(loss, grad_norm):
    windows = TokenWindows(IDS, 16, 8, seed=1)
    named = rf"step 0: loss {loss}, gradient norm {grad_norm}, windows \[{windows.starts(0)[0]}, "

    with pytest.raises(DivergedError, match=named):
        check_finite(loss, grad_norm, new_state(), windows, train_params())


def test_a_validation_that_is_not_finite_ends_the_run():
    with pytest.raises(DivergedError, match=r"validation loss is nan at step 0; check the weights of train\.init_from"):
        record_validation(new_state(), math.nan, train_params())


def test_a_rise_above_the_lowest_loss_ends_the_run():
    params = train_params(divergence_nats=0.5, log_every_steps=1)
    state = new_state()
    for loss in (5.0, 3.0, 3.5):
        log_step(state, loss, 1.0, 0.01, params)

    with pytest.raises(DivergedError, match=r"loss 3\.750, 3\.000 before.*divergence_nats 0\.5"):
        log_step(state, 3.75, 1.0, 0.01, params)

    check_divergence(state, train_params(divergence_nats=None))


def test_losses_are_the_golden_ones():
    """tests/golden/losses.json; after an intended change, run: python tests/lm/train/test_step.py."""
    golden = json.loads((ROOT / "tests" / "golden" / "losses.json").read_text())

    assert golden_losses() == {name: pytest.approx(losses, abs=2e-4) for name, losses in golden.items()}


def golden_losses() -> dict[str, list[float]]:
    """Return the losses of 12 steps with each optimizer, taken as src/train.py does."""
    params = train_params()
    golden = {}
    for optimizer in ("muon", "adamw"):
        state = new_state(optimizer)
        windows = TokenWindows(IDS, params.seq_len, params.batch_size, seed=1)
        losses = []
        for batch in prefetch(windows, range(params.max_steps), CPU):
            loss, _ = compute_gradients(state, batch, params, torch.float32)
            update_weights(state, learning_rate(state.step, params))
            losses.append(loss)
        golden[optimizer] = losses
    return golden


if __name__ == "__main__":
    path = ROOT / "tests" / "golden" / "losses.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden_losses(), indent=1) + "\n")
