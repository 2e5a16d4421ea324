"""What a training run is: the section `train` of params.yaml, its ranges, and what follows from it."""

import dataclasses
from typing import Literal

from lm.core.params import needed

TOKEN_COUNTS = (
    "seq_len", "batch_tokens", "micro_batch_tokens", "log_every_tokens", "eval_every_tokens", "eval_tokens",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The section `train` of params.yaml; tokens are counted, learning rates are per optimizer step."""

    seq_len: int
    batch_tokens: int
    micro_batch_tokens: int
    max_tokens: int
    optimizer: Literal["muon", "adamw"]
    peak_lr: float
    min_lr: float
    embedding_lr_factor: float
    warmup_steps: int
    schedule: Literal["cosine", "stable_decay"]
    decay_share: float
    weight_decay: float
    beta1: float
    beta2: float
    grad_clip: float
    dtype: Literal["auto", "float32", "bfloat16"]
    compile: bool
    seed: int
    init_from: str
    patience_evals: int | None
    divergence_nats: float | None
    log_every_tokens: int
    eval_every_tokens: int
    eval_tokens: int

    def __post_init__(self):
        for name in TOKEN_COUNTS:
            needed(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        needed(self.micro_batch_tokens % self.seq_len == 0, "micro_batch_tokens", self.micro_batch_tokens,
               f"a multiple of seq_len {self.seq_len}")  # fmt: skip
        needed(self.batch_tokens % self.micro_batch_tokens == 0, "batch_tokens", self.batch_tokens,
               f"a multiple of micro_batch_tokens {self.micro_batch_tokens}")  # fmt: skip
        needed(self.max_tokens >= self.batch_tokens, "max_tokens", self.max_tokens,
               f"at least batch_tokens {self.batch_tokens}")  # fmt: skip
        needed(self.peak_lr > 0, "peak_lr", self.peak_lr, "above 0")
        needed(0 <= self.min_lr <= self.peak_lr, "min_lr", self.min_lr, f"from 0 to peak_lr {self.peak_lr}")
        needed(0 <= self.warmup_steps < self.max_steps, "warmup_steps", self.warmup_steps,
               f"fewer than the run's {self.max_steps} steps")  # fmt: skip
        needed(0 < self.decay_share <= 1, "decay_share", self.decay_share, "above 0, at most 1")
        needed(self.grad_clip > 0, "grad_clip", self.grad_clip, "above 0")
        needed(self.embedding_lr_factor > 0, "embedding_lr_factor", self.embedding_lr_factor, "above 0")
        needed(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        for name in ("beta1", "beta2"):
            needed(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to below 1")
        needed(0 <= self.seed < 2**63, "seed", self.seed, "from 0 to below 2^63")
        needed(self.patience_evals is None or self.patience_evals >= 1, "patience_evals", self.patience_evals,
               "null or at least 1")  # fmt: skip
        needed(self.divergence_nats is None or self.divergence_nats > 0, "divergence_nats", self.divergence_nats,
               "null or above 0")  # fmt: skip

    @property
    def max_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.max_tokens // self.batch_tokens

    @property
    def eval_every_steps(self) -> int:
        """Optimizer steps between validations."""
        return max(1, self.eval_every_tokens // self.batch_tokens)

    @property
    def log_every_steps(self) -> int:
        """Optimizer steps that a row of the training curve averages."""
        return max(1, self.log_every_tokens // self.batch_tokens)

    @property
    def batch_size(self) -> int:
        """Sequences in an optimizer step."""
        return self.batch_tokens // self.seq_len
