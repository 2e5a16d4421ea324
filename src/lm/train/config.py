"""The parameters of a run, from params.yaml and presets.yaml, and the section `train` of runtime.yaml."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from lm.core.errors import ParamsError
from lm.core.params import FRACTION, SEED, Range, above, at_least, read_section, require
from lm.core.paths import PARAMS, PRESETS, RUNTIME
from lm.model.config import ModelParams

Count = Annotated[int, at_least(1)]
CountOrNull = Annotated[int | None, at_least(1, ", or null")]
Positive = Annotated[float, above(0)]
Beta = Annotated[float, Range(lambda value: 0 <= value < 1, "from 0 to below 1")]


@dataclasses.dataclass(frozen=True)
class TrainParams:
    """The section `train` of params.yaml. Lengths are in tokens; learning rates are per optimizer step."""

    seq_len: Count
    attend_across_documents: bool
    batch_tokens: Count
    micro_batch_tokens: Count
    max_tokens: int
    optimizer: Literal["muon", "adamw"]
    peak_lr: Positive
    min_lr: float
    warmup_steps: int
    schedule: Literal["cosine", "wsd"]
    decay_fraction: Annotated[float, FRACTION]
    weight_decay: Annotated[float, at_least(0)]
    beta1: Beta
    beta2: Beta
    grad_clip: Positive
    sampled_vocab_size: CountOrNull
    ngram_buckets: CountOrNull
    numerics: Literal["exact", "fast"]
    dtype: Literal["auto", "float32", "bfloat16"]
    compile: bool
    seed: Annotated[int, SEED]
    init_from: str
    divergence_nats: Annotated[float | None, above(0, ", or null")]
    log_every_tokens: Count
    eval_every_tokens: Count
    eval_tokens: Count

    def __post_init__(self):
        # Check the values against each other. One wrong value can break several rules, so only the first one is named.
        fits = self.micro_batch_tokens % self.seq_len == 0
        require(fits, "micro_batch_tokens", self.micro_batch_tokens, f"a multiple of seq_len {self.seq_len}")

        fits = self.batch_tokens % self.micro_batch_tokens == 0
        of_micro_batches = f"a multiple of micro_batch_tokens {self.micro_batch_tokens}"
        require(fits, "batch_tokens", self.batch_tokens, of_micro_batches)

        fits = self.max_tokens >= self.batch_tokens
        require(fits, "max_tokens", self.max_tokens, f"at least batch_tokens {self.batch_tokens}")

        fits = 0 <= self.min_lr <= self.peak_lr
        require(fits, "min_lr", self.min_lr, f"from 0 to peak_lr {self.peak_lr}")

        fits = 0 <= self.warmup_steps < self.max_steps
        require(fits, "warmup_steps", self.warmup_steps, f"fewer than the run's {self.max_steps} steps")

        fits = self.numerics == "fast" or self.dtype != "bfloat16"
        require(fits, "dtype", self.dtype, "float32 or auto, or numerics must be fast")

        fits = self.numerics == "fast" or not self.compile
        require(fits, "compile", self.compile, "false, or numerics must be fast")

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
    def decay_begins(self) -> int:
        """Return the step up to which learning rates do not depend on the length of the run; 0 for "cosine"."""
        if self.schedule == "cosine":
            return 0
        return self.max_steps - max(1, round(self.decay_fraction * self.max_steps))

    @property
    def batch_size(self) -> int:
        """Return the sequences of an optimizer step."""
        return self.batch_tokens // self.seq_len

    @property
    def micro_batch_size(self) -> int:
        """Return the most sequences that are computed at once, in training and in validation."""
        return self.micro_batch_tokens // self.seq_len


@dataclasses.dataclass(frozen=True)
class RunParams:
    """The parameters of a run: the section `train` of params.yaml, and the model that model.name chooses."""

    train: TrainParams
    model_name: str
    model: ModelParams


@dataclasses.dataclass(frozen=True)
class TrainRuntime:
    """The section `train` of runtime.yaml: settings of this machine, which change no bit in exact numerics."""

    checkpoint_every_s: Annotated[float, at_least(0)]
    keep_fingerprints: Count
    keep_checkpoints: Annotated[int, at_least(0)]
    num_processes: Count
    timeout_s: Positive


def check_lengths(file: Path, seq_len: int, model_name: str, max_seq_len: int) -> None:
    """Raise ParamsError, with a line for each, if the model's context is too short for training or for the samples."""
    tokens = read_section(file, "eval.sample_tokens", int)
    longest = f"models.{model_name}.max_seq_len {max_seq_len} of {PRESETS}"
    problems = []
    if seq_len > max_seq_len:
        problems.append(f"{file}: train.seq_len is {seq_len}; it must be at most {longest}")
    if tokens >= max_seq_len:
        requirement = f"1 or more, below {longest}, to hold a prompt too"
        problems.append(f"{file}: eval.sample_tokens is {tokens}; it must be {requirement}")
    if problems:
        raise ParamsError("\n".join(problems))


def read_params() -> RunParams:
    """Read the parameters of the run; raise ParamsError if they are wrong."""
    train = read_section(PARAMS, "train", TrainParams)
    name = read_section(PARAMS, "model.name", str)
    model = read_section(PRESETS, f"models.{name}", ModelParams)
    return RunParams(train, name, model)


def read_runtime() -> TrainRuntime:
    """Read the settings of this machine; raise ParamsError if a value is wrong."""
    return read_section(RUNTIME, "train", TrainRuntime)
