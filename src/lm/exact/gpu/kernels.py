"""The functions that lm.exact.functions calls on a GPU; lm.exact.cpu.kernels has the same ones for a CPU."""

# ruff: noqa: F401
from lm.exact.gpu.attention import attention, attention_gradient
from lm.exact.gpu.embeddings import sum_bags
from lm.exact.gpu.gate import gated_gelu, gated_gelu_gradient
from lm.exact.gpu.gradients import multiples, square_sums
from lm.exact.gpu.loss import empty_logits, loss_rows, softmax_less_targets, token_nats
from lm.exact.gpu.norm import rms_norm, rms_norm_gradient
from lm.exact.gpu.optimizers import adamw, orthogonalize
from lm.exact.gpu.products import multiply, pack
from lm.exact.gpu.short_attention import short_attention, short_attention_gradient
from lm.exact.gpu.softmax import softmax
