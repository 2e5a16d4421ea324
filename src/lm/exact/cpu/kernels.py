"""The functions that lm.exact.functions calls on a CPU; lm.exact.gpu.kernels has the same ones for a GPU."""

from lm.exact.cpu.attention import attention, attention_gradient
from lm.exact.cpu.embeddings import sum_bags, sum_rows_by_id
from lm.exact.cpu.gate import gated_gelu, gated_gelu_gradient
from lm.exact.cpu.gradients import multiples, square_sums
from lm.exact.cpu.loss import loss_rows, softmax_less_targets, token_nats
from lm.exact.cpu.norm import rms_norm, rms_norm_gradient
from lm.exact.cpu.optimizers import adamw, orthogonalize
from lm.exact.cpu.products import multiply, pack
from lm.exact.cpu.short_attention import short_attention, short_attention_gradient
from lm.exact.cpu.softmax import softmax

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
