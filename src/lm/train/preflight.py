"""What a run will be, said before it starts: size, work, memory, epochs, and what is unwise."""

import contextlib
import dataclasses

import torch

from lm.core.errors import EnvironmentFailure
from lm.model.gemma3 import MAX_LOGITS, ModelConfig, count_parameters, flops_per_token
from lm.train.config import TrainParams

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Plan:
    """Figures derived from the parameters; tokens and steps of the whole run."""

    num_parameters: int
    flops_per_token: float
    max_steps: int
    max_tokens: int
    train_tokens: int
    memory_bytes: int

    @property
    def epochs(self) -> float:
        """How often the run passes over the training file."""
        return self.max_tokens / self.train_tokens

    def lines(self, seconds_per_step: float) -> list[str]:
        """The summary as printed, with the time at the measured speed of one step."""
        total_flops = self.flops_per_token * self.max_tokens
        minutes = self.max_steps * seconds_per_step / 60
        return [
            f"parameters   {self.num_parameters:,}",
            f"steps        {self.max_steps:,}, {self.max_tokens:,} tokens = {self.epochs:.2f} epochs of "
            f"{self.train_tokens:,}",
            f"work         {self.flops_per_token / 1e6:.1f} MFLOP a token, {total_flops / 1e12:.1f} TFLOP in all",
            f"memory       about {self.memory_bytes / GIB:.1f} GiB",
            f"time         about {minutes:.1f} min at {self.max_tokens / self.max_steps / seconds_per_step:,.0f} "
            "tokens/s, validation not counted",
        ]


def make_plan(
    params: TrainParams, config: ModelConfig, train_tokens: int, micro_batch_tokens: int, shards: int = 1
) -> Plan:
    """Derive the figures of a run, or of one rank of it that takes `micro_batch_tokens` at a time."""
    num_parameters = count_parameters(config)["total"]
    return Plan(
        num_parameters=num_parameters,
        flops_per_token=flops_per_token(config, params.seq_len)["total"],
        max_steps=params.max_steps,
        max_tokens=params.max_steps * params.batch_tokens,
        train_tokens=train_tokens,
        memory_bytes=estimate_memory_bytes(num_parameters, config, micro_batch_tokens, shards),
    )


def estimate_memory_bytes(num_parameters: int, config: ModelConfig, micro_batch_tokens: int, shards: int = 1) -> int:
    """Rough upper estimate of the memory in bytes of a training run, or of one rank of it.

    Weights, gradients, two AdamW moments and the best weights so far in float32; about 16 d_model +
    6 d_ff float32 activations kept a token and block; a chunk of logits with its gradient, and the
    gradient of the head. Of sharded weights a rank has its part, and the whole head with its gradient.
    """
    states = 5 * 4 * num_parameters // shards + (8 * config.vocab_size * config.d_model if shards > 1 else 0)
    activations = 4 * config.n_layer * (16 * config.d_model + 6 * config.d_ff) * micro_batch_tokens
    rows = min(micro_batch_tokens, MAX_LOGITS // config.vocab_size)
    head = 4 * config.vocab_size * (3 * rows + config.d_model)
    return states + activations + head


def refuse_too_large(plan: Plan, available_bytes: int) -> None:
    """Raise EnvironmentFailure if the run will not fit: the kernel would end it without a word."""
    if plan.memory_bytes > available_bytes:
        raise EnvironmentFailure(
            f"the run needs about {plan.memory_bytes / GIB:.1f} GiB, {available_bytes / GIB:.1f} GiB are free; lower "
            "train.micro_batch_tokens (more accumulation gives the same losses) or choose a smaller model.name"
        )


def warnings(plan: Plan, seq_len: int, window: int, full_attention_every: int) -> list[str]:
    """What is legal and probably not meant."""
    found = []
    if window >= seq_len and full_attention_every > 1:
        found.append(
            f"models' window {window} is not shorter than train.seq_len {seq_len}: sliding attention is never "
            "active, every layer sees the whole context"
        )
    if plan.epochs > 8:
        found.append(f"train.max_tokens is {plan.epochs:.1f} epochs of the training file: expect overfitting")
    return found


@contextlib.contextmanager
def out_of_memory_in_words():
    """Turn torch's failed allocations into the sentence that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error):
            raise EnvironmentFailure(
                "out of memory in a training step; lower train.micro_batch_tokens (more accumulation gives the "
                "same losses) or choose a smaller model.name"
            ) from None
        raise
