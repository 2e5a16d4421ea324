"""The gate of the MLP, gelu(gate) up, and its gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact.gpu.constants import GELU_CUBIC, GELU_CUBIC_SLOPE, GELU_SCALE
from lm.exact.gpu.elementary import sigmoid
from lm.exact.gpu.launch import NUMBERS, cdiv, launch


@triton.jit
def gelu_inner(x):
    """Return 2 u of gelu(x) = x / (1 + exp(-2 u))."""
    return (x * x * GELU_CUBIC + 1.0) * x * GELU_SCALE


@triton.jit
def gated_gelu_kernel(gate, up, out, size, BLOCK: tl.constexpr):
    """out = gelu(gate) up."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(gate + i, mask=inside, other=0.0)
    factor = tl.load(up + i, mask=inside, other=0.0)
    gelu = x * sigmoid(gelu_inner(x))
    tl.store(out + i, gelu * factor, mask=inside)


@triton.jit
def gated_gelu_gradient_kernel(grad, gate, up, grad_gate, grad_up, size, BLOCK: tl.constexpr):
    """Write the gradients of gate and up."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(gate + i, mask=inside, other=0.0)
    factor = tl.load(up + i, mask=inside, other=0.0)
    weight = sigmoid(gelu_inner(x))  # gelu(x) = x weight
    # The slope of gelu, divided by weight: the product is x times the slope of inner, times 1 - weight.
    slope = (x * x * GELU_CUBIC_SLOPE + 1.0) * x * GELU_SCALE * (1.0 - weight) + 1.0
    scaled = weight * tl.load(grad + i, mask=inside, other=0.0)
    tl.store(grad_gate + i, slope * factor * scaled, mask=inside)
    tl.store(grad_up + i, scaled * x, mask=inside)


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (N, F)."""
    out = torch.empty_like(gate)
    size = gate.numel()
    grid = (cdiv(size, NUMBERS),)
    launch(gated_gelu_kernel, grid, gate, up, out, size, BLOCK=NUMBERS)
    return out


def gated_gelu_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up (N, F)."""
    grad_gate = torch.empty_like(gate)
    grad_up = torch.empty_like(up)
    size = gate.numel()
    grid = (cdiv(size, NUMBERS),)
    launch(gated_gelu_gradient_kernel, grid, grad, gate, up, grad_gate, grad_up, size, BLOCK=NUMBERS)
    return grad_gate, grad_up
