"""What a run will be, said before it starts: size, work, memory, epochs, and what is unwise."""

import dataclasses

import torch

from lm.errors import EnvironmentFailure

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


def estimate_memory_bytes(
    num_parameters: int, n_layer: int, d_model: int, d_ff: int, vocab_size: int, micro_batch_tokens: int
) -> int:
    """Rough upper estimate of a training run's memory in bytes.

    Weights, gradients, two AdamW moments and the best weights so far in float32; about
    16 d_model + 6 d_ff float32 activations kept a token and block; logits, their float32 copy and gradient.
    """
    states = 5 * 4 * num_parameters
    activations = 4 * n_layer * (16 * d_model + 6 * d_ff) * micro_batch_tokens
    logits = 3 * 4 * vocab_size * min(micro_batch_tokens, 4096)
    return states + activations + logits


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


def out_of_memory(error: RuntimeError) -> EnvironmentFailure | None:
    """The clear error for an allocation that failed inside torch, or None for any other error."""
    text = str(error)
    if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in text and "not enough memory" not in text:
        return None
    return EnvironmentFailure(
        "out of memory in a training step; lower train.micro_batch_tokens (more accumulation gives the same losses)"
    )
