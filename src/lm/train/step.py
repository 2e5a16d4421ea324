"""The arithmetic of a training step and of a validation; src/train.py calls these functions in order.

They are part of the run's fingerprint (lm.train.fingerprint): after a change, a new run starts.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lm.core.errors import DivergedError
from lm.exact import functions as exact
from lm.exact.order import GRADIENT_UNIT, LARGEST_GRADIENT, cos_pi
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import copy_to
from lm.model.score import window_losses
from lm.tokens.tokenfile import count_ids
from lm.tokens.windows import TokenWindows, model_selection_starts
from lm.train.config import TrainParams
from lm.train.ranks import World
from lm.train.state import TrainingState


def num_rows_of_rank(world: World, params: TrainParams) -> int:
    """Return how many rows of a batch each rank takes."""
    return params.batch_size // world.world_size


def rows_of_rank(world: World, params: TrainParams) -> slice:
    """Return the consecutive rows of a batch that this rank takes."""
    num_rows = num_rows_of_rank(world, params)
    return slice(world.rank * num_rows, (world.rank + 1) * num_rows)


def micro_batch_rows(num_rows: int, params: TrainParams) -> int:
    """Return the rows of each micro-batch in which a rank computes its `num_rows` rows of a batch.

    It is the largest number that divides both `num_rows` and `micro_batch_size`, so that all micro-batches are equal.
    In exact numerics it is `micro_batch_size` for any number of ranks, which lm.train.preflight checks: another size
    gives other bits.
    """
    return math.gcd(num_rows, params.micro_batch_size)


def prefetch(
    windows: TokenWindows, steps: Iterable[int], device: torch.device | str, rows: slice = slice(None)
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the inputs and targets (B, T) int64 of each step on `device`; `rows` selects rows of the batch.

    The copy of the next batch starts before a batch is yielded, so that a GPU never waits for it.
    """
    batches = (to_device(windows.buffer(step)[rows], device) for step in steps)
    ready = next(batches, None)
    while ready is not None:
        following = next(batches, None)
        yield ready
        ready = following


def to_device(buffer: np.ndarray, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return x and y (B, T) on `device` from a buffer (B, T + 1); y is x shifted by one."""
    device = torch.device(device)
    if device.type == "cpu":  # slices cost less in NumPy than in torch
        return torch.from_numpy(buffer[:, :-1]), torch.from_numpy(buffer[:, 1:])
    tensor = copy_to(torch.from_numpy(buffer), device)  # whole, because slices are not pinned
    return tensor[:, :-1], tensor[:, 1:]


def compute_gradients(
    state: TrainingState, batch: tuple[Tensor, Tensor], params: TrainParams, dtype: torch.dtype
) -> tuple[float, float]:
    """Compute the clipped gradients of a step; return the loss in nats per token and the norm before clipping.

    batch: inputs and targets (B, T) int64, this rank's rows. Loss and gradients are means over all ranks.
    """
    is_exact = params.numerics == "exact"
    parameters = list(state.model.parameters())
    draws = uniform_draws(state.step, params)
    x, y = batch
    rows = micro_batch_rows(len(x), params)

    # Compute the gradients, averaged over micro-batches and ranks.
    if is_exact:
        loss = average_gradients_exactly(state.model, state.world, x, y, rows, draws)
    else:
        own_loss = accumulate_gradients(state.model, x, y, rows, dtype, draws)
        state.world.average_gradients(parameters)

    # Read the loss and the norm together: a GPU waits each time that Python asks for a number.
    gradients = [p.grad for p in parameters if p.grad is not None]
    if is_exact:
        norm = torch.tensor(exact.norm(gradients))
        norm_value = float(norm)
    else:
        norm = nn.utils.get_total_norm(gradients)
        own_loss_value, norm_value = torch.stack([own_loss, norm]).tolist()
        loss = state.world.mean(own_loss_value)

    # Scale the gradients down to the largest norm.
    if norm_value + 1e-6 > params.grad_clip:  # the constant of clip_grads_with_norm_
        nn.utils.clip_grads_with_norm_(parameters, params.grad_clip, norm)
    return loss, norm_value


def uniform_draws(step: int, params: TrainParams) -> Tensor | None:
    """Return the random numbers of a step's vocabulary, (sampled_vocab_size,) float64, equal in all ranks, or None."""
    if params.sampled_vocab_size is None:
        return None
    rng = np.random.default_rng([params.seed, step])
    return torch.from_numpy(rng.random(params.sampled_vocab_size))


def sampling_weights(ids: np.ndarray, vocab_size: int) -> Tensor:
    """Return the odds (V,) int64 with which a step draws the entries of its vocabulary: about 16 (count + 1)^¾.

    The exponent is that of word2vec (Mikolov et al. 2013, arXiv 1310.4546): with 1, training draws rare entries too
    seldom. Roots are rounded alike on every processor, powers are not.
    """
    root = np.sqrt(count_ids(ids, vocab_size) + 1)
    odds = 16 * root * np.sqrt(root)
    return torch.from_numpy(odds.astype(np.int64))


def accumulate_gradients(
    model: Gemma3Model,
    x: Tensor,
    y: Tensor,
    rows: int,
    dtype: torch.dtype,
    draws: Tensor | None = None,
) -> Tensor:
    """Add the gradients of the mean loss over x, y (B, T), `rows` at a time; return that loss in nats, float32."""
    total = torch.zeros((), device=x.device)
    is_mixed = dtype != torch.float32
    micro_batches = split_rows(x, y, rows)
    # The outer context keeps the weights that autocast has rounded for all micro-batches.
    with torch.autocast(x.device.type, dtype, enabled=is_mixed):
        for ids, targets in micro_batches:
            loss = model.loss(ids, targets, draws) / len(micro_batches)
            with torch.autocast(x.device.type, enabled=False):
                loss.backward()
            total += loss.detach()
    return total


def split_rows(x: Tensor, y: Tensor, rows: int) -> list[tuple[Tensor, Tensor]]:
    """Return the inputs and targets (B, T) of each micro-batch of `rows` rows."""
    return list(zip(x.split(rows), y.split(rows), strict=True))


def average_gradients_exactly(
    model: Gemma3Model, world: World, x: Tensor, y: Tensor, rows: int, draws: Tensor | None = None
) -> float:
    """Set each gradient to its mean over the micro-batches of all ranks; return the mean loss in nats per token.

    x, y: (B, T) int64, this rank's rows of the batch; `rows` of them are computed at a time. The gradients of several
    micro-batches are added as integers, so that the bits are the same for any number of ranks. They become infinite if
    one does not fit into such an integer: if it is above 1,024 in size, or NaN.
    """
    micro_batches = split_rows(x, y, rows)
    count = len(micro_batches) * world.world_size

    # A single micro-batch has its mean.
    if count == 1:
        loss = model.loss(x, y, draws)
        loss.backward()
        return loss.item()

    # Add the gradients of this rank's micro-batches.
    parameters = list(model.parameters())
    totals = [torch.zeros(p.shape, dtype=torch.int64, device=p.device) for p in parameters]
    num_too_large = torch.zeros((), dtype=torch.int64, device=x.device)
    losses: list[float] = []
    for ids, targets in micro_batches:
        loss = model.loss(ids, targets, draws)
        loss.backward()
        losses.append(loss.item())
        for p, total in zip(parameters, totals, strict=True):
            gradient: Any = p.grad
            num_too_large += (~(gradient.abs() <= LARGEST_GRADIENT * GRADIENT_UNIT)).sum()
            total += exact.as_integers(gradient)
            p.grad = None  # one after the other, which takes less memory

    # Average over the micro-batches of all ranks.
    world.add_integers([*totals, num_too_large])
    for p, total in zip(parameters, totals, strict=True):
        mean = (total.double() * (GRADIENT_UNIT / count)).float()
        p.grad = mean.masked_fill_(num_too_large > 0, torch.inf)
    return math.fsum(world.all_gather_numbers(losses)) / count


def check_finite(
    loss: float, grad_norm: float, state: TrainingState, windows: TokenWindows, params: TrainParams
) -> None:
    """Raise DivergedError if the loss or the gradient norm of the current step is not finite."""
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise DivergedError(
            f"training diverged at step {state.step}: loss {loss}, gradient norm {grad_norm}, windows "
            f"{windows.starts(state.step)[:4].tolist()}…; lower train.peak_lr {params.peak_lr}"
        )


def learning_rate(step: int, params: TrainParams) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0: linear warm-up, then `params.schedule`.

    "cosine" falls to min_lr after the warm-up; "wsd" stays at the peak and falls linearly over the last
    `decay_fraction` of the run (Hägele et al. 2024, arXiv 2405.18392). Where both ramps overlap, the smaller counts.
    """
    max_steps = params.max_steps
    span = params.peak_lr - params.min_lr
    if params.schedule == "cosine":
        progress = max(0, step - params.warmup_steps) / max(1, max_steps - params.warmup_steps)
        scheduled = params.min_lr + span * 0.5 * (1 + cos_pi(progress))
    else:
        decay_steps = max_steps - params.decay_begins
        scheduled = params.min_lr + span * min(1.0, (max_steps - step) / decay_steps)
    warmup = math.inf
    if step < params.warmup_steps:
        warmup = params.peak_lr * (step + 1) / params.warmup_steps
    return min(warmup, scheduled)


def update_weights(state: TrainingState, lr: float) -> None:
    """Apply the gradients at learning rate `lr` times each group's factor, and clear them."""
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    state.step += 1


def log_step(state: TrainingState, loss: float, grad_norm: float, lr: float, params: TrainParams) -> None:
    """Add the loss to its interval; after `log_every_steps` steps append the mean to the training curve."""
    state.interval_loss += loss
    if state.step % params.log_every_steps == 0:
        mean_loss = state.interval_loss / params.log_every_steps
        state.history.train.append([state.step, state.step * params.batch_tokens, lr, mean_loss, grad_norm])
        state.interval_loss = 0.0
        check_divergence(state, params)


def check_divergence(state: TrainingState, params: TrainParams) -> None:
    """Raise DivergedError if the last training loss is more than `divergence_nats` above the lowest."""
    losses = [train_loss for _, _, _, train_loss, _ in state.history.train]
    if not losses or params.divergence_nats is None:
        return
    last = losses[-1]
    lowest = min(losses)
    if last > lowest + params.divergence_nats:
        step = state.history.train[-1][0]
        raise DivergedError(
            f"training diverged at step {step}: loss {last:.3f}, {lowest:.3f} before, "
            f"a rise of more than train.divergence_nats {params.divergence_nats}; lower train.peak_lr {params.peak_lr}"
        )


def validation_loss(state: TrainingState, tokens, params: TrainParams, dtype: torch.dtype) -> float:
    """Return the mean nats per token over the windows of a token file that select the best model.

    Each rank scores every `world_size`-th batch. Batches and the order of the sum are those of one process, so the bits
    are the same.
    With `compile`, the last batch repeats its last window: another number of rows would need separate graphs.
    """
    world = state.world
    batch_size = params.micro_batch_size
    starts = model_selection_starts(len(tokens.ids), params.eval_tokens, params.seq_len)
    num_batches = -(-len(starts) // batch_size)

    # Score this rank's batches. Read the losses when all are computed, because a GPU waits for each reading.
    scored: list[tuple[int, Tensor]] = []
    for number in range(world.rank, num_batches, world.world_size):
        first = number * batch_size
        chosen = starts[first : first + batch_size]
        count = len(chosen)
        if params.compile:
            chosen = np.pad(chosen, (0, batch_size - count), "edge")
        losses_of_batch = window_losses(state.model, tokens, chosen, params.seq_len, dtype)
        scored.append((first, losses_of_batch[:count]))

    losses = np.full((len(starts), params.seq_len), np.nan, np.float32)
    for first, losses_of_batch in scored:
        losses[first : first + len(losses_of_batch)] = losses_of_batch.cpu().numpy()
    return float(world.all_gather_losses(losses).mean(dtype="float64"))


def record_validation(state: TrainingState, loss: float, params: TrainParams) -> None:
    """Append a validation loss in nats per token to its curve; keep the weights if it is the best so far."""
    if not math.isfinite(loss):
        remedy = f"lower train.peak_lr {params.peak_lr}" if state.step else "check the weights of train.init_from"
        raise DivergedError(f"validation loss is {loss} at step {state.step}; {remedy}")
    state.history.validation.append([state.step, state.step * params.batch_tokens, loss])
    if loss < state.best_loss:
        state.best_loss = loss
        state.best_step = state.step
        state.best_weights = state.weights()
