"""Float32 arithmetic with the same bits on every processor, with every library, for any number of threads.

A sum of floating-point numbers depends on the order of its terms, and libraries choose the order by the processor. Here
no order matters: the operands of a product are rounded to multiples of a power of two, at most LEVELS of them for the
largest of BLOCK numbers. So each partial sum of a block is an integer below 2²⁴ times a power of two, which float32
holds exactly (the idea is Ozaki's: Ozaki et al. 2012, doi 10.1007/s11075-011-9478-1). Blocks are added one after the
other. All else is additions, multiplications, divisions and roots in a fixed order, which IEEE 754 rounds everywhere
alike, one torch call for each, so that no compiler joins two of them. Rounding the operands changes a product two to
three times as much as bfloat16 does.

tests/lm/train/test_operations.py holds the operations of a step to this. Other dtypes and devices use torch's own.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

BLOCK = 128  # terms of a partial sum
LEVELS = (361, 361)  # of the grids of both operands; BLOCK times their product is below 2²⁴
WEIGHT_LEVELS = (1024, 127)  # for a softmax, whose small numbers count together: none is negative
SMALLEST_STEP = 2.0**-58  # of a grid, so that no product is a subnormal number
MAGIC = 1.5 * 2**23  # float32 numbers near it are integers
EXP2 = (0.001326473, 0.009671513, 0.055507337, 0.240222421, 0.693146978, 1.0)  # 2^f for |f| ≤ 1/2, relative error 1e-7
SMALLEST_LOG2 = -60.0  # exponents in `exp_`
CACHED_NUMBERS = 2**18  # numbers that stay in the cache during a chain of operations

_is_on = True


@contextlib.contextmanager
def switched_off(condition: bool = True) -> Iterator[None]:
    """Use torch's own products and sums, which are faster and more precise and have other bits on other processors."""
    global _is_on
    before, _is_on = _is_on, _is_on and not condition
    try:
        yield
    finally:
        _is_on = before


def is_exact(x: Tensor, dtype: torch.dtype) -> bool:
    """Return True if products of `x` in `dtype` are computed here: float32 on a CPU, outside of torch.compile."""
    return _is_on and dtype == torch.float32 and x.device.type == "cpu" and not torch.compiler.is_compiling()


def grid(x: Tensor, dim: int, levels: int) -> Tensor:
    """Return x (…, R, C) rounded to a grid of `levels` for each block of BLOCK numbers along `dim` (-1 or -2)."""
    if x.stride(-1) != 1 and x.stride(-2) == 1:  # reductions of a transposed view take 20 times as long
        return grid(x.mT, -3 - dim, levels).mT
    length = x.shape[dim]
    if length > BLOCK:
        if missing := -length % BLOCK:
            x = F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
        x = x.unflatten(dim, (-1, BLOCK))
    x = round_to(x, grid_step(x, dim, levels))
    return x.flatten(dim - 1, dim).narrow(dim, 0, length) if length > BLOCK else x


def grid_step(x: Tensor, dim: int, levels: int) -> Tensor:
    """Return the power of two of which the largest number along `dim` is at most `levels`, and more than half of it."""
    largest = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    step = (largest * (2 / levels)).clamp_(min=SMALLEST_STEP)
    return step.view(torch.int32).bitwise_and_(0x7F800000).view(torch.float32)  # without its fraction


def round_to(x: Tensor, step: Tensor) -> Tensor:
    """Return x rounded to multiples of `step`, a power of two."""
    magic = step * MAGIC
    return (x + magic).sub_(magic)


def product(a: Tensor, b: Tensor, levels: tuple[int, int] = LEVELS) -> Tensor:
    """Return a @ b (…, M, N) of a (…, M, K) and b (…, K, N)."""
    return add_blocks(grid(a, -1, levels[0]), grid(b, -2, levels[1])) if is_exact(a, a.dtype) else a @ b


def weighted_sums(p: Tensor, v: Tensor) -> Tensor:
    """Return p @ v (N, M, D) of weights p (N, M, S) and vectors v (N, S, D).

    Each vector has a grid of its own. So a vector of weight 0, such as one of the future, does not change the result.
    """
    step = grid_step(v, -1, WEIGHT_LEVELS[1])  # (N, S, 1)
    return add_blocks(grid(p * step.mT, -1, WEIGHT_LEVELS[0]), round_to(v, step) / step)


def add_blocks(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b (…, M, N) of a (…, M, K) and b (…, K, N) on their grids."""
    total = a[..., :BLOCK] @ b[..., :BLOCK, :]
    for k in range(BLOCK, a.shape[-1], BLOCK):
        total.add_(a[..., k : k + BLOCK] @ b[..., k : k + BLOCK, :])
    return total.add_(0.0)  # libraries differ in the sign of a zero


class LinearFunction(Function):
    """Compute x W^T and both gradients by `product`."""

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


def sum_tree(x: Tensor, dim: int) -> Tensor:
    """Return the sum along `dim`, which keeps length 1: add the second half to the first until one number is left."""
    while (length := x.shape[dim]) > 1:
        half = (length + 1) // 2
        top = x.narrow(dim, 0, length - half) + x.narrow(dim, half, length - half)
        x = top if 2 * half == length else torch.cat([top, x.narrow(dim, half - 1, 1)], dim)
    return x


def norms(x: Tensor) -> Tensor:
    """Return the norm (N,) of each x[n]."""
    return sqrt(sum_tree((x * x).flatten(1), 1))[:, 0]


def sqrt(x: Tensor) -> Tensor:
    """Return the root of x; torch's own is MKL's, which differs between vendors, but its rsqrt is 1 / root rounded."""
    return x.rsqrt().reciprocal_()


def exp_(x: Tensor) -> Tensor:
    """Replace x ≤ 0 by exp(x), at least 2^SMALLEST_LOG2: subnormal numbers are slow."""
    x.mul_(math.log2(math.e)).clamp_(min=SMALLEST_LOG2)
    whole = x + MAGIC  # its last bits are the integer next to x
    x.sub_(whole - MAGIC)
    power = x * EXP2[0]
    for coefficient in EXP2[1:-1]:
        power.add_(coefficient).mul_(x)
    power.add_(EXP2[-1])
    exponent = whole.view(torch.int32).bitwise_left_shift_(23)
    return x.copy_(power.view(torch.int32).add_(exponent).view(torch.float32))


def log(x: Tensor) -> Tensor:
    """Return log(x): 2 artanh((m - 1) / (m + 1)) + e log(2) for x = m 2^e."""
    mantissa, exponent = torch.frexp(x.double())
    z = (mantissa - 1) / (mantissa + 1)
    square, total = z * z, torch.zeros_like(z)
    for n in range(27, 0, -2):
        total = total * square + 1 / n
    return (total * z * 2 + exponent.double() * math.log(2)).float()


def softmax_(x: Tensor) -> Tensor:
    """Replace x (…, S) by its softmax over the last axis; -inf becomes 0."""
    for rows in x.view(-1, x.shape[-1]).split(max(1, CACHED_NUMBERS // x.shape[-1])):
        visible = rows > -torch.inf
        exp_(rows.sub_(rows.amax(-1, keepdim=True)))
        rows.mul_(visible)
        rows.div_(sum_tree(rows, -1))
    return x


def softmax_gradient_(grad: Tensor, p: Tensor) -> Tensor:
    """Replace grad (…, S), the gradient of a softmax p (…, S), by that of its input."""
    for g, own in chunks(grad, p, row=p.shape[-1]):
        g, own = g.view(-1, p.shape[-1]), own.view(-1, p.shape[-1])
        g.sub_(sum_tree(g * own, -1)).mul_(own)
    return grad


def chunks(*tensors: Tensor, row: int = 1) -> Iterator[tuple[Tensor, ...]]:
    """Yield parts of about CACHED_NUMBERS numbers of contiguous tensors of one size, whole rows of `row` numbers."""
    size = max(1, CACHED_NUMBERS // row) * row
    return zip(*(t.view(-1).split(size) for t in tensors), strict=True)
