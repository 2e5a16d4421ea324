"""The sections `train` of params.yaml and of runtime.yaml: fields, ranges, and derived numbers of steps."""

import dataclasses
from typing import Literal

from lm.core.params import needed

TOKEN_COUNTS = (
    "seq_len", "batch_tokens", "micro_batch_tokens", "log_every_tokens", "eval_every_tokens", "eval_tokens",
)  # fmt: skip
BELOW_ONE = ("beta1", "beta2")


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The section `train` of params.yaml. Lengths are in tokens; learning rates are per optimizer step."""

    GONE = ("average_decay",)  # of the weights: it was not better at the end of a run (benchmarks/LOG.md)

    seq_len: int
    attend_across_documents: bool
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
    sampled_vocab_size: int | None
    numerics: Literal["portable", "fast"]
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
        # The range of each value, all that are wrong at once.
        problems = []
        for name, ok, requirement in (
            *((name, getattr(self, name) >= 1, "at least 1") for name in TOKEN_COUNTS),
            *((name, getattr(self, name) > 0, "above 0") for name in ("peak_lr", "grad_clip", "embedding_lr_factor")),
            ("decay_share", 0 < self.decay_share <= 1, "above 0, at most 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            *((name, 0 <= getattr(self, name) < 1, "from 0 to below 1") for name in BELOW_ONE),
            ("seed", 0 <= self.seed < 2**63, "from 0 to below 2^63"),
            *((name, getattr(self, name) is None or getattr(self, name) >= 1, "null or at least 1")
              for name in ("sampled_vocab_size", "patience_evals")),
            ("divergence_nats", self.divergence_nats is None or self.divergence_nats > 0, "null or above 0"),
        ):  # fmt: skip
            problems += [] if ok else [f"{name} is {getattr(self, name)}, needed: {requirement}"]
        if problems:
            raise ValueError("\n".join(problems))

        # What must fit together: one wrong value can break several of these rules, so the first one is named.
        whole_run = f"fewer than the run's {self.max_tokens // self.batch_tokens} steps"
        for name, ok, requirement in (
            ("micro_batch_tokens", self.micro_batch_tokens % self.seq_len == 0,
             f"a multiple of seq_len {self.seq_len}"),
            ("batch_tokens", self.batch_tokens % self.micro_batch_tokens == 0,
             f"a multiple of micro_batch_tokens {self.micro_batch_tokens}"),
            ("max_tokens", self.max_tokens >= self.batch_tokens, f"at least batch_tokens {self.batch_tokens}"),
            ("min_lr", 0 <= self.min_lr <= self.peak_lr, f"from 0 to peak_lr {self.peak_lr}"),
            ("warmup_steps", 0 <= self.warmup_steps < self.max_steps, whole_run),
            ("dtype", self.numerics == "fast" or self.dtype != "bfloat16", "float32 or auto, or numerics fast"),
            ("compile", self.numerics == "fast" or not self.compile, "false, or numerics fast"),
        ):  # fmt: skip
            needed(ok, name, getattr(self, name), requirement)

    @property
    def max_steps(self) -> int:
        """Return the optimizer steps of the whole run."""
        return self.max_tokens // self.batch_tokens

    @property
    def eval_every_steps(self) -> int:
        """Return the optimizer steps from one validation to the next."""
        return max(1, self.eval_every_tokens // self.batch_tokens)

    @property
    def log_every_steps(self) -> int:
        """Return the optimizer steps that a row of the training curve averages."""
        return max(1, self.log_every_tokens // self.batch_tokens)

    @property
    def batch_size(self) -> int:
        """Return the sequences of an optimizer step."""
        return self.batch_tokens // self.seq_len


@dataclasses.dataclass(frozen=True)
class TrainRuntime:
    """The section `train` of runtime.yaml: how this machine does the work."""

    checkpoint_every_s: float
    keep_fingerprints: int
    keep_states: int
    keep_freed_memory: bool
    num_processes: int
    shard: bool
    timeout_s: float

    def __post_init__(self):
        needed(self.keep_states >= 0, "keep_states", self.keep_states, "0 or more")
        needed(self.num_processes >= 1, "num_processes", self.num_processes, "at least 1")
        needed(self.timeout_s > 0, "timeout_s", self.timeout_s, "above 0")
