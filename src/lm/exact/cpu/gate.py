"""The gate of the MLP, gelu(gate) up, and its gradients."""

import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ONE
from lm.exact.cpu.elementary import sigmoid
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.order import GELU_CUBIC, GELU_CUBIC_SLOPE, GELU_SCALE


@loop
def gelu_inner(x):
    """Return 2 u of gelu(x) = x / (1 + exp(-2 u))."""
    return (x * x * GELU_CUBIC + ONE) * x * GELU_SCALE


@loop
def gated_gelu_loop(gate, up, out, part, parts):
    for n in rows_of_part(len(gate), part, parts):
        gate_row = gate[n]
        up_row = up[n]
        out_row = out[n]
        for j in range(gate.shape[1]):
            x = gate_row[j]
            gelu = x * sigmoid(gelu_inner(x))
            out_row[j] = gelu * up_row[j]


@loop
def gated_gelu_gradient_loop(grad, gate, up, grad_gate, grad_up, part, parts):
    for n in rows_of_part(len(gate), part, parts):
        grad_row = grad[n]
        gate_row = gate[n]
        up_row = up[n]
        grad_gate_row = grad_gate[n]
        grad_up_row = grad_up[n]
        for j in range(gate.shape[1]):
            x = gate_row[j]
            weight = sigmoid(gelu_inner(x))  # gelu(x) = x weight
            # The slope of gelu, divided by weight: the product is x times the slope of inner, times 1 - weight.
            slope = (x * x * GELU_CUBIC_SLOPE + ONE) * x * GELU_SCALE * (ONE - weight) + ONE
            scaled = weight * grad_row[j]
            grad_gate_row[j] = slope * up_row[j] * scaled
            grad_up_row[j] = scaled * x


def gated_gelu(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) up, all (N, F)."""
    out = torch.empty_like(gate)
    run(gated_gelu_loop, gate, up, out, work=2 * out.numel())
    return out


def gated_gelu_gradient(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up (N, F)."""
    grad_gate = torch.empty_like(gate)
    grad_up = torch.empty_like(up)
    run(gated_gelu_gradient_loop, grad, gate, up, grad_gate, grad_up, work=3 * grad.numel())
    return grad_gate, grad_up
