"""The time of a step and of a validation, measured before the first step. It must not change a bit of the run."""

import functools
import time
from collections.abc import Callable

import torch

from lm.model.device import synchronize
from lm.tokens.windows import TokenWindows
from lm.train.batches import to_device
from lm.train.config import TrainParams
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, rows_of_rank, validation_loss


def second_call_seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the time of the second of two calls; the first allocates memory and compiles."""
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        function()
        synchronize(device)
        seconds = time.perf_counter() - started
    return seconds


def step_seconds(state: TrainingState, windows: TokenWindows, params: TrainParams, dtype: torch.dtype) -> float:
    """Return the time of an optimizer step, measured on the first batch before the first step.

    Weights and optimizers are restored bit for bit. The copy takes the memory that the best weights take later.
    """
    device, before = state.model.device, [p.detach().clone() for p in state.model.parameters()]

    def take_step() -> None:
        batch = to_device(windows.buffer(0)[rows_of_rank(state.world, params)], device)
        compute_gradients(state, batch, params, dtype)
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    seconds = second_call_seconds(take_step, device)
    for p, weights in zip(state.model.parameters(), before, strict=True):
        p.detach().copy_(weights)
    for optimizer in state.optimizers:
        optimizer.state.clear()
    return seconds


def validation_seconds(state: TrainingState, tokens, params: TrainParams, dtype: torch.dtype) -> float:
    """Return the time of one validation, extrapolated from one batch per rank."""
    ranks = state.world.world_size
    one_batch = functools.partial(validation_loss, state, tokens, params, dtype, max_batches=ranks)
    batches = min(params.eval_tokens, len(tokens.ids)) / params.micro_batch_tokens
    return second_call_seconds(one_batch, state.model.device) * max(1.0, batches / ranks)
