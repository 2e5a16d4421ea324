"""The functions that lm.exact.functions calls on a GPU; lm.exact.cpu.kernels has the same ones for a CPU."""

from lm.exact.gpu.attention import attention, attention_gradient
from lm.exact.gpu.embeddings import sum_bags, sum_rows_by_id
from lm.exact.gpu.gate import gated_gelu, gated_gelu_gradient
from lm.exact.gpu.gradients import multiples, square_sums
from lm.exact.gpu.loss import loss_rows, softmax_less_targets, token_nats
from lm.exact.gpu.norm import rms_norm, rms_norm_gradient
from lm.exact.gpu.optimizers import adamw, orthogonalize
from lm.exact.gpu.products import multiply, pack
from lm.exact.gpu.short_attention import short_attention, short_attention_gradient
from lm.exact.gpu.softmax import softmax

__all__ = [
    "adamw",
    "attention",
    "attention_gradient",
    "gated_gelu",
    "gated_gelu_gradient",
    "loss_rows",
    "multiples",
    "multiply",
    "orthogonalize",
    "pack",
    "rms_norm",
    "rms_norm_gradient",
    "short_attention",
    "short_attention_gradient",
    "softmax",
    "softmax_less_targets",
    "square_sums",
    "sum_bags",
    "sum_rows_by_id",
    "token_nats",
]
