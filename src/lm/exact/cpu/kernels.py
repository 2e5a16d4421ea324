"""The functions that lm.exact.functions calls on a CPU; lm.exact.gpu.kernels has the same ones for a GPU."""

# ruff: noqa: F401
from lm.exact.cpu.attention import attention, attention_gradient
from lm.exact.cpu.embeddings import sum_bags
from lm.exact.cpu.gate import gated_gelu, gated_gelu_gradient
from lm.exact.cpu.gradients import multiples, square_sums
from lm.exact.cpu.loss import empty_logits, loss_rows, softmax_less_targets, token_nats
from lm.exact.cpu.norm import rms_norm, rms_norm_gradient
from lm.exact.cpu.optimizers import adamw, orthogonalize
from lm.exact.cpu.products import multiply, pack
from lm.exact.cpu.short_attention import short_attention, short_attention_gradient
from lm.exact.cpu.softmax import softmax
