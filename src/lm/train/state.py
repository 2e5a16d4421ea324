"""The state of a training run: everything that the next step depends on, and the rows of the curves so far."""

import dataclasses
import hashlib
import math
import sys
import time
from collections.abc import Iterable, Iterator

import torch

from lm.core.messages import say
from lm.model.gemma3 import Gemma3Model
from lm.train.ranks import SINGLE_PROCESS, World

ACTIVITIES = ("training", "validation", "saving")  # the time of a run is counted by activity, without pauses
DIGEST_DIGITS = 12


@dataclasses.dataclass
class History:
    """Rows of the curves."""

    train: list[list] = dataclasses.field(default_factory=list)  # [step, tokens, lr, train_loss, grad_norm]
    validation: list[list] = dataclasses.field(default_factory=list)  # [step, tokens, val_loss]
    digests: list[str] = dataclasses.field(default_factory=list)  # of the state at each row of `validation`
    timing: list[list] = dataclasses.field(default_factory=list)  # [tokens, seconds of each of ACTIVITIES so far]


@dataclasses.dataclass
class TrainingState:
    """A run after `step` optimizer steps. `restore(as_dict())` continues it bit for bit."""

    model: Gemma3Model
    optimizers: list[torch.optim.Optimizer]
    world: World = SINGLE_PROCESS
    step: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    best_weights: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    history: History = dataclasses.field(default_factory=History)
    interval_loss: float = 0.0  # sum of the losses since the last row of the training curve
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    segments: list[dict] = dataclasses.field(default_factory=list)
    measured: float = 0.0  # time.monotonic() up to which `seconds` counts

    PLAIN = ("step", "best_loss", "best_step", "best_weights", "interval_loss", "seconds", "segments")

    def as_dict(self) -> dict:
        """Return the whole state, as tensors and plain values."""
        return {
            **self._tensors(),
            "history": dataclasses.asdict(self.history),
            "rng": torch.get_rng_state(),
            **{name: getattr(self, name) for name in self.PLAIN},
        }

    def _tensors(self) -> dict:
        """Return the tensors that training changes, without a copy."""
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"model": self.model.state_dict(), "optimizers": optimizers}

    def restore(self, saved: dict) -> None:
        """Load a state that `as_dict` returned."""
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.history = History(**saved["history"])
        torch.set_rng_state(saved["rng"])
        for name in self.PLAIN:
            setattr(self, name, saved[name])

    def record_machine(self, here: dict) -> None:
        """Record the machine of the following steps (`computed_on` of lm.model.machine); warn if it has changed."""
        before = dict(self.segments[-1]) if self.segments else {}
        before.pop("from_step", None)
        if before == here:
            return
        # Records of exact numerics name a GPU in `gpu`, because its bits are the same.
        bits_before = {name: value for name, value in before.items() if name != "gpu"}
        bits_here = {name: value for name, value in here.items() if name != "gpu"}
        may_differ = before and bits_before != bits_here
        if may_differ and self.world.is_main:
            say(f"warning: started on {before}, continued on {here}: the bits may differ", file=sys.stderr)
        self.segments.append({"from_step": self.step, **here})

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights on the CPU, in model order."""
        return {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}

    def digest(self) -> str:
        """Return the `digest_of` this state on the main rank, "" on others."""
        if not self.world.is_main:
            return ""
        return digest_of(named_tensors(self._tensors()))

    def count_seconds(self, activity: str) -> None:
        before = self.measured
        self.measured = time.monotonic()
        self.seconds[activity] += self.measured - before


def named_tensors(saved: dict) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights in model order and each optimizer's tensors by parameter, of an `as_dict`."""
    yield from saved["model"].items()
    for i, optimizer in enumerate(saved["optimizers"]):
        for parameter, values in sorted(optimizer["state"].items()):
            for name, tensor in sorted(values.items()):
                yield f"optimizers.{i}.{parameter}.{name}", tensor


def digest_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return 12 hex digits of the SHA-256 of named tensors: name, dtype, shape and bytes of each, in this order."""
    sha256 = hashlib.sha256()
    for name, tensor in tensors:
        heading = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"
        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        sha256.update(heading.encode())
        sha256.update(content.numpy().data)
    return sha256.hexdigest()[:DIGEST_DIGITS]
