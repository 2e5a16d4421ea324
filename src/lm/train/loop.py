"""The training loop and the state it can stop with and go on from, bit for bit."""

import dataclasses
import math
import time
from collections.abc import Iterator

import torch
from torch import nn

from lm.core.errors import DivergedError, ParamsError
from lm.model.score import score_tokens
from lm.tokens.tokenfile import TokenFile
from lm.tokens.windows import TokenWindows
from lm.train.batches import prefetch, to_device
from lm.train.config import TrainParams
from lm.train.distributed import ALONE, Team, full
from lm.train.optimizers import learning_rate, set_learning_rate


@dataclasses.dataclass
class History:
    """Rows for the curves: [step, tokens, lr, train_loss, grad_norm] and [step, tokens, val_loss]."""

    train: list[list] = dataclasses.field(default_factory=list)
    validation: list[list] = dataclasses.field(default_factory=list)
    timing: list[list] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class TrainingState:
    """All that the next step depends on; `as_dict` and `restore` are each other's inverse."""

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    team: Team = ALONE
    step: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    best_weights: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    history: History = dataclasses.field(default_factory=History)
    interval_loss: float = 0.0
    elapsed_s: float = 0.0
    segments: list[dict] = dataclasses.field(default_factory=list)

    PLAIN = ("step", "best_loss", "best_step", "best_weights", "interval_loss", "elapsed_s", "segments")

    def as_dict(self) -> dict:
        """Tensors and plain values only, so that it loads without running code.

        The same for any number of ranks; all of them call it, the first one's is whole.
        """
        return {
            "model": self.team.whole(self.model.state_dict()),
            "optimizers": [self.team.whole(optimizer.state_dict()) for optimizer in self.optimizers],
            "history": dataclasses.asdict(self.history),
            "rng": torch.get_rng_state(),
            **{name: getattr(self, name) for name in self.PLAIN},
        }

    def restore(self, saved: dict) -> None:
        """Take over what `as_dict` gave."""
        self.model.load_state_dict(self.team.split(saved["model"], self.model))
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(self.team.split_state(state, optimizer))
        self.history = History(**saved["history"])
        torch.set_rng_state(saved["rng"])
        for name in self.PLAIN:
            setattr(self, name, saved[name])

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights on the CPU, in model order; all ranks call it, the first one's is whole."""
        weights = self.team.whole(self.model.state_dict())
        return {name: value.detach().cpu().clone() for name, value in weights.items()}


def share(params: TrainParams, team: Team) -> tuple[slice, int]:
    """The rows of every batch that a rank takes, and in how many equal micro-batches it takes them."""
    rows = params.batch_tokens // params.seq_len // team.count
    micro_batch = math.gcd(rows, params.micro_batch_tokens // params.seq_len)
    return slice(team.rank * rows, (team.rank + 1) * rows), rows // micro_batch


def refuse_unequal_shares(params: TrainParams, team: Team) -> None:
    """Raise ParamsError if the ranks cannot take equal shares of a batch, or of what the optimizer works on."""
    if params.batch_size % team.count:
        raise ParamsError(
            f"train.batch_tokens {params.batch_tokens} are {params.batch_size} sequences of train.seq_len "
            f"{params.seq_len}, which {team.count} processes cannot share equally: start a number of them that divides "
            f"{params.batch_size} (runtime.yaml's train.num_processes), or change the batch; micro-batches follow"
        )
    if team.sharded and params.optimizer == "muon":
        raise ParamsError(
            "train.optimizer is muon, which works on whole matrices; runtime.yaml's train.shard leaves each process "
            "a part of them; set the one to adamw or the other to false"
        )


def finished(state: TrainingState, params: TrainParams) -> bool:
    """Whether the run is at its end: all its steps done, or `patience_evals` validations without a better one."""
    since_best = sum(step > state.best_step for step, _, _ in state.history.validation)
    return state.step >= params.max_steps or (params.patience_evals is not None and since_best >= params.patience_evals)


def train_steps(
    state: TrainingState, windows: TokenWindows, params: TrainParams, device: torch.device, dtype: torch.dtype
) -> Iterator[int]:
    """Run optimizer steps from state.step to the end of the run; yield after each.

    Raises DivergedError before the update if the loss or a gradient is not finite, and where the mean
    loss of a logging interval stands `divergence_nats` above the lowest one before it.
    """
    rows, micro_batches = share(params, state.team)
    check_divergence(state.history.train, params)  # a run that ended so does not go on past it
    batches = prefetch(windows, range(state.step, params.max_steps), device, rows)
    while not finished(state, params):
        lr = learning_rate(
            state.step, params.max_steps, params.warmup_steps, params.peak_lr, params.min_lr, params.schedule,
            params.decay_share,
        )  # fmt: skip
        set_learning_rate(state.optimizers, lr)
        loss = accumulate_gradients(state.model, *next(batches), micro_batches, dtype)
        loss = state.team.average(loss, state.model.parameters())
        grad_norm = float(full(nn.utils.clip_grad_norm_(state.model.parameters(), params.grad_clip)))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise DivergedError(
                f"training diverged at step {state.step}: loss {loss}, gradient norm {grad_norm}, windows "
                f"{windows.starts(state.step)[:4].tolist()}…; lower train.peak_lr {params.peak_lr}"
            )
        for optimizer in state.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.interval_loss += loss
        if state.step % params.log_every_steps == 0:
            tokens = state.step * params.batch_tokens
            state.history.train.append(
                [state.step, tokens, lr, state.interval_loss / params.log_every_steps, grad_norm]
            )
            state.interval_loss = 0.0
            check_divergence(state.history.train, params)
        yield state.step


def check_divergence(rows: list[list], params: TrainParams) -> None:
    """Raise DivergedError if the newest row's train loss is `divergence_nats` above the lowest."""
    losses = [row[3] for row in rows]
    if losses and params.divergence_nats is not None and losses[-1] > min(losses) + params.divergence_nats:
        raise DivergedError(
            f"training diverged at step {rows[-1][0]}: loss {losses[-1]:.3f}, {min(losses):.3f} before, more than "
            f"train.divergence_nats {params.divergence_nats} lower; lower train.peak_lr {params.peak_lr}"
        )


def accumulate_gradients(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, micro_batches: int, dtype: torch.dtype
) -> float:
    """Add the gradients of the mean loss over x, y (B, T) in equal micro-batches; return that loss in nats."""
    total = torch.zeros((), device=x.device)
    for ids, targets in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            loss = model.loss(ids, targets) / micro_batches
        loss.backward()
        total += loss.detach()
    return float(total)


class Clock:
    """Seconds of training over all segments of a run, and since the last state was saved."""

    def __init__(self, elapsed_before_s: float):
        self._started, self._interval = time.monotonic() - elapsed_before_s, time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the run began, pauses between its segments left out."""
        return time.monotonic() - self._started

    def interval_s(self) -> float:
        """Seconds since `restart_interval`."""
        return time.monotonic() - self._interval

    def restart_interval(self) -> None:
        """Begin a new interval."""
        self._interval = time.monotonic()


def validation_loss(
    model: nn.Module, tokens: TokenFile, params: TrainParams, team: Team, device: torch.device, dtype: torch.dtype
) -> float:
    """Mean nats a token over the first `eval_tokens` of the validation file, in windows side by side.

    The ranks share the windows; the batches and the order of the sum are those of one process, so are the bits.
    """
    batch_size = max(1, params.micro_batch_tokens // params.seq_len)
    losses, _ = score_tokens(
        model, tokens.ids[: params.eval_tokens], tokens.eot_id, params.seq_len, params.seq_len, batch_size, device,
        dtype, "validate", team.rank, team.count,
    )  # fmt: skip
    return float(team.join_scores(losses).mean(dtype="float64"))


def validate(state: TrainingState, loss: float, tokens: int) -> float:
    """Record a validation loss in nats a token and keep the weights if it is the best so far."""
    if not math.isfinite(loss):
        raise DivergedError(f"validation loss is {loss} at step {state.step}; lower train.peak_lr")
    state.history.validation.append([state.step, tokens, loss])
    if loss < state.best_loss:
        state.best_loss, state.best_step, state.best_weights = loss, state.step, state.weights()
    return loss


def seconds_per_step(model: nn.Module, windows: TokenWindows, rows: slice, micro_batches: int, device, dtype) -> float:
    """Time the gradients of these rows of a batch, the second of two, and leave no trace in the model."""
    for _ in range(2):
        start = time.perf_counter()
        accumulate_gradients(model, *to_device(windows.buffer(0)[rows], device), micro_batches, dtype)
        model.zero_grad(set_to_none=True)
    return time.perf_counter() - start
