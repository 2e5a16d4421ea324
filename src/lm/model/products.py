"""Matrix products in float32 that have the same bits on every x86-64 processor, for any number of threads.

MKL, which torch calls for them, chooses its code by the vendor of the processor. oneDNN adds the products of each
element in ascending order by fused multiply-adds, whatever the instruction set, for up to 512 of them; longer sums are
cut here. So each element has one definition:

    Σ over blocks of 512 k, in order, of fma(a[m, k], b[k, n], …) in order of k

which tests/lm/model/test_products.py computes with NumPy. Other dtypes and devices use torch's own products.
"""

import functools
import platform

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

BLOCK = 512  # terms that oneDNN adds in order; with AVX-512 it adds longer sums in parts


@functools.cache
def is_available() -> bool:
    """Return True if this processor and this torch can compute products in the fixed order."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and torch.backends.mkldnn.is_available() and torch.cpu.get_capabilities().get("avx2", False)


def has_fixed_order(x: Tensor, dtype: torch.dtype) -> bool:
    """Return True if products of `x` in `dtype` have the fixed order: float32 on a CPU, outside of torch.compile."""
    if torch.compiler.is_compiling():
        return False
    return dtype == torch.float32 and x.device.type == "cpu" and is_available()


@functools.cache
def are_in_order() -> bool:
    """Return True if a product on this processor has the bits of its definition, computed with NumPy."""
    a, b = (((torch.arange(n) * 7919 % 1009).float() / 1009 - 0.5).view(-1, 1100) for n in (3 * 1100, 5 * 1100))
    return np.array_equal(product(a, b.mT).numpy(), defined_product(a.numpy(), b.mT.numpy()))


def defined_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b (M, N) float32 of a (M, K) and b (K, N) by the definition, slowly.

    float64 holds a product of two float32 numbers exactly. Its sum is rounded twice, to float64 and to float32, which
    differs from one fused multiply-add only where the first rounding ends halfway between two float32 numbers.
    """
    blocks = []
    for start in range(0, a.shape[1], BLOCK):
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(start, min(start + BLOCK, a.shape[1])):
            total = (np.outer(a[:, k].astype(float), b[k].astype(float)) + total).astype(np.float32)
        blocks.append(total)
    return functools.reduce(np.add, blocks)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b (M, N) of a (M, K) and b (K, N)."""
    if not has_fixed_order(a, a.dtype):
        return a @ b
    if a.shape[0] == 1:  # oneDNN sums the product of a single vector in another order
        return product(a.expand(2, -1), b)[:1]
    if b.shape[1] == 1:
        return product(a, b.expand(-1, 2))[:, :1]
    # The transposed product of the transposed operands has the same bits, and often saves a copy.
    direct, transposed = _copied_numbers(a, b)
    return _sum_blocks(a, b) if direct <= transposed else _sum_blocks(b.mT, a.mT).mT


def _copied_numbers(a: Tensor, b: Tensor) -> tuple[int, int]:
    """Return how many numbers `_sum_blocks` copies for a @ b, and for the product of the transposed operands.

    oneDNN needs dense operands, the first one stored by rows. Strides are compared, because views take time.
    """
    one_block = a.shape[1] <= BLOCK
    a_rows, b_rows = a.is_contiguous(), b.is_contiguous()
    a_columns, b_columns = (x.stride() == (1, x.shape[0]) for x in (a, b))
    direct = a.numel() * (not (one_block and a_rows)) + b.numel() * (not (b_rows or (one_block and b_columns)))
    return direct, b.numel() * (not (one_block and b_columns)) + a.numel() * (not (a_columns or (one_block and a_rows)))


def _sum_blocks(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b (M, N), M and N above 1, as the sum of the products of blocks of K, one after the other."""
    if a.shape[1] <= BLOCK:
        return _block(a, b)
    total = _block(a[:, :BLOCK], b[:BLOCK])
    for k in range(BLOCK, a.shape[1], BLOCK):
        total.add_(_block(a[:, k : k + BLOCK], b[k : k + BLOCK]))
    return total


def _block(a: Tensor, b: Tensor) -> Tensor:
    if not (b.is_contiguous() or b.stride() == (1, b.shape[0])):
        b = b.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a.contiguous(), b.mT, None, "none", [], "")


def products(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b (N, R, C) of batches of matrices a (N, R, K) and b (N, K, C)."""
    if not has_fixed_order(a, a.dtype):
        return a @ b
    (_, rows, length), columns = a.shape, b.shape[2]
    if min(rows, columns) == 1 or length > BLOCK:
        return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])
    # All pairs have one layout, so that it is looked at once.
    direct, transposed = _copied_numbers(a[0], b[0])
    if direct > transposed:
        return _one_block_each(b.mT, a.mT).mT
    return _one_block_each(a, b)


def _one_block_each(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for batches a (N, R, K) and b (N, K, C) with K of at most one block, R and C above 1."""
    weights = b.mT
    if not (b[0].is_contiguous() or weights[0].is_contiguous()):
        weights = b.contiguous().mT
    multiply = torch.ops.mkldnn._linear_pointwise.default
    pairs = zip(a.contiguous().unbind(), weights.unbind(), strict=True)
    return torch.stack([multiply(x, weight, None, "none", [], "") for x, weight in pairs])


def add_products(x: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Return beta x + alpha a @ b for batches of matrices x (N, R, C), a (N, R, K), b (N, K, C)."""
    if not has_fixed_order(a, a.dtype):
        return torch.baddbmm(x, a, b, beta=beta, alpha=alpha)
    return products(a, b).mul_(alpha).add_(x, alpha=beta)


class LinearFunction(Function):
    """Compute x W^T in the fixed order, and both gradients."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return (…, O) for x (…, I) and weight (O, I)."""
        ctx.save_for_backward(x, weight)
        return product(x.reshape(-1, x.shape[-1]), weight.mT).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of weight."""
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_weight = product(rows.mT, x.reshape(-1, x.shape[-1])) if ctx.needs_input_grad[1] else None
        return product(rows, weight).view(x.shape), grad_weight
