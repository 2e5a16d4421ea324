"""The matrix products of a training step without the rest of it: what a step could reach at the very best."""

from collections.abc import Callable

import torch

from lm.model.gemma3 import MAX_LOGITS, Gemma3Model, ModelConfig


def bare_products(config: ModelConfig, batch_size: int, seq_len: int, dtype: torch.dtype) -> Callable[[], None]:
    """A function that takes the products of one step in `dtype`, of the weights and of all scores.

    Each is taken forward and, as two, backward, of as many logits at a time as the loss makes; nothing is
    normalized, cast, added up or updated.
    """
    with torch.device("meta"):
        shapes = [weight.shape for weight in Gemma3Model(config).parameters() if weight.ndim == 2]
    weights = [torch.randn(shape, dtype=dtype) for shape in shapes]
    x = {width: torch.randn(batch_size * seq_len, width, dtype=dtype) for shape in shapes[1:] for width in shape}
    heads = (batch_size * config.n_head, seq_len, config.head_dim)
    q, k, v, grad = (torch.randn(heads, dtype=dtype) for _ in range(4))

    def step() -> None:
        """The products of the head, of the blocks' matrices, of attention."""
        for rows in x[config.d_model].split(MAX_LOGITS // config.vocab_size):
            multiply(weights[0], rows)
        for weight in weights[1:]:
            multiply(weight, x[weight.shape[1]], x[weight.shape[0]])
        for _ in range(config.n_layer):
            scores = q @ k.mT
            scores @ v, grad @ v.mT, scores.mT @ grad  # forward, and the gradients of both factors
            scores @ k, scores.mT @ q

    return step


def multiply(weight: torch.Tensor, x: torch.Tensor, grad: torch.Tensor | None = None) -> None:
    """x (N, in) by weight (out, in) → (N, out), and by a gradient of that shape both gradients."""
    y = x @ weight.T
    grad = y if grad is None else grad
    grad @ weight, grad.T @ x
