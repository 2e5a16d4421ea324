"""Exact numerics: training whose bits depend on no library, thread, rank or processor. Legend as in lm.model.gemma3.

- The operands of a product are rounded to a grid whose step is a power of two, at most LEVELS steps for the largest
  number of a block of BLOCK terms. So each product is an integer times a power of two, and float32 holds each partial
  sum of a block: every library gives the same sum in any order. Blocks are added one after the other.
- Other sums are trees of additions of whole tensors, written out here. Those over units of a batch add integers.
- The rest are IEEE operations, one torch call each, so that no compiler can contract two of them into one.

Left out: the logarithms of a sampled softmax, which torch computes in float64; sharded weights; the normal numbers of
the initial weights.
"""

import contextlib
import math
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from lm.model import gemma3, kernels, products
from lm.train import optimizers, step
from lm.train.world import World

BLOCK, LEVELS = 128, 361  # BLOCK * LEVELS² < 2²⁴
GRADIENT_UNITS = 2.0**40  # integers in a gradient of 1, where those of several units are added
CHUNK = 65_536  # numbers that stay in the cache during a chain of operations
SOFTMAX_ROWS = 32
MAGIC = 1.5 * 2**23  # the last bit of a number near it is 1
EXP2 = (0.009674367, 0.055503651, 0.240224943, 0.693147182, 1.0)  # 2^f for |f| ≤ 1/2, relative error 4e-6


def grid(x: Tensor, dim: int) -> Tensor:
    """Return x (…, R, C), rounded to a grid for each block of BLOCK numbers along `dim` (-1 or -2)."""
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return grid(x.mT, -3 - dim).mT  # the same numbers; reductions of a transposed view take 20 times as long
    length = x.shape[dim]
    if length > BLOCK:
        if missing := -length % BLOCK:
            x = F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
        x = x.unflatten(dim, (-1, BLOCK))
    largest = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    grid_step = (largest * (2 / LEVELS)).view(torch.int32).bitwise_and_(0x7F800000).view(torch.float32)
    magic = grid_step.mul_(MAGIC)
    x = (x + magic).sub_(magic)
    return x.flatten(dim - 1, dim).narrow(dim, 0, length) if length > BLOCK else x


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b (…, M, N) of a (…, M, K) and b (…, K, N)."""
    a, b = grid(a, -1), grid(b, -2)
    total = (a[..., :BLOCK] @ b[..., :BLOCK, :]).add_(0.0)  # a sum of zeros is -0 in one library and 0 in the next
    for k in range(BLOCK, a.shape[-1], BLOCK):
        total.add_(a[..., k : k + BLOCK] @ b[..., k : k + BLOCK, :])
    return total


def sum_tree(x: Tensor, dim: int) -> Tensor:
    """Return the sum along `dim`, which keeps length 1: add the second half to the first until one number is left."""
    while (n := x.shape[dim]) > 1:
        half = (n + 1) // 2
        top = x.narrow(dim, 0, n - half) + x.narrow(dim, half, n - half)
        x = top if 2 * half == n else torch.cat([top, x.narrow(dim, half - 1, 1)], dim)
    return x


def square_sum(x: Tensor) -> Tensor:
    """Return the sum of squares (N, 1) of each x[n]."""
    return sum_tree((x * x).flatten(1), 1)


def sqrt(x: Tensor) -> Tensor:
    """Return the root of float32 numbers, rounded as IEEE says: torch's own is MKL's, which differs between vendors."""
    return x.double().sqrt_().float()


def exp_(x: Tensor) -> Tensor:
    """Replace x ≤ 0 by exp(x), at least 2^-60: smaller numbers would lead to subnormal ones, which are slow."""
    x.mul_(math.log2(math.e)).clamp_(min=-60.0)
    whole = x + MAGIC  # its last bits are the integer next to x
    x.sub_(whole - MAGIC)
    power = x * EXP2[0]
    for c in EXP2[1:-1]:
        power.add_(c).mul_(x)
    power.add_(EXP2[-1])
    exponent = whole.view(torch.int32).bitwise_left_shift_(23)
    return x.copy_(power.view(torch.int32).add_(exponent).view(torch.float32))


def log(x: Tensor) -> Tensor:
    """Return log(x): 2 artanh((m - 1) / (m + 1)) + e log(2)."""
    mantissa, exponent = torch.frexp(x.double())
    z = (mantissa - 1) / (mantissa + 1)
    square, total = z * z, torch.zeros_like(z)
    for n in range(27, 0, -2):
        total = total * square + 1 / n
    return (total * z * 2 + exponent.double() * math.log(2)).float()


class GatedGELU(kernels.GatedGELUFunction):
    """Gate x, times 1 / (1 + exp(-2 u)), u = s (x + c x³), times up."""

    @staticmethod
    def forward(ctx, gate, up):
        half, out = torch.empty_like(gate), torch.empty_like(up)
        for x, h, u, o in chunks(gate, half, up, out):
            inner = (x * x).mul_(kernels.GELU_CUBIC).add_(1).mul_(x).mul_(2 * kernels.GELU_SCALE)
            small = exp_(-inner.abs())
            torch.div(torch.where(inner >= 0, 1.0, small), small + 1, out=h)
            torch.mul(x, h, out=o).mul_(u)
        ctx.save_for_backward(gate, up, half)
        return out


def chunks(*tensors: Tensor):
    """Return parts of CHUNK numbers of contiguous tensors."""
    return zip(*(t.view(-1).split(CHUNK) for t in tensors), strict=True)


class RMSNorm(Function):
    """x r (1 + w), r = 1 / sqrt(mean(x²) + eps)."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        root = sqrt(sum_tree(x * x, -1).div_(x.shape[-1]).add_(eps))
        r = torch.ones_like(root).div_(root)
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight + 1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, r = ctx.saved_tensors
        unit, gain = x * r, weight + 1
        terms = grad * unit
        grad_weight = sum_tree(terms.flatten(0, -2), 0)[0]
        along = sum_tree(terms.mul_(gain), -1).div_(x.shape[-1])
        return (grad * gain).sub_(unit.mul_(along)).mul_(r), grad_weight, None


class Attention(kernels.AttentionFunction):
    """softmax(scale q k^T + bias) v."""

    @staticmethod
    def forward(ctx, q, k, v, scale, bias):
        q = q * scale
        p = product(q, k.mT).add_(bias)
        for rows in p.flatten(0, 1).split(max(1, CHUNK // p.shape[-1])):
            exp_(rows.sub_(rows.amax(-1, keepdim=True)))
            rows.div_(sum_tree(rows, -1))
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return product(p, v)


def softmax_gradient(grad: Tensor, p: Tensor) -> Tensor:
    """Replace grad (N, M, S) by the gradient of the scores."""
    for g, own in zip(*(t.flatten(0, 1).split(max(1, CHUNK // p.shape[-1])) for t in (grad, p)), strict=True):
        g.sub_(sum_tree(g * own, -1)).mul_(own)
    return grad


def nats_and_gradient_(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of targets (N,) in all, and replace logits (N, V) by their gradient."""
    blocks: list[tuple[Tensor, Tensor, Tensor]] = []
    nats = token_nats(logits, targets, blocks)
    for block, target, sums in blocks:
        block.div_(sums).scatter_add_(1, target, -torch.ones_like(target, dtype=block.dtype))
    return sum_tree(nats, 0)[0]


def token_nats(logits: Tensor, targets: Tensor, blocks: list | None = None) -> Tensor:
    """Return the nats (N,) of targets (N,), and replace logits (N, V) by exp(logit - largest); append them to `blocks`.

    A block is some rows of them, their targets and their sums.
    """
    distances, sums = [], []
    for block, target in zip(logits.split(SOFTMAX_ROWS), targets[:, None].split(SOFTMAX_ROWS), strict=True):
        block.sub_(block.amax(-1, keepdim=True))
        distances.append(-block.gather(1, target))
        sums.append(sum_tree(exp_(block), -1))
        if blocks is not None:
            blocks.append((block, target, sums[-1]))
    return torch.cat(distances).add_(log(torch.cat(sums)))[:, 0]


def rotary_table(start: int, end: int, head_dim: int, base: float, device) -> tuple[Tensor, Tensor]:
    """Return the table of lm.model.gemma3.rotary_table, rounded from float64."""
    frequency = torch.tensor([base ** (-i / head_dim) for i in range(0, head_dim, 2)])
    angle = torch.arange(start, end, dtype=torch.float64)[:, None, None] * frequency.double()
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate as lm.model.gemma3.rotate."""
    return x * table[0] + x.roll(x.shape[-1] // 2, -1) * table[1]


def orthogonalize(updates: Tensor, dtype: torch.dtype, steps: int = optimizers.NEWTON_SCHULZ_STEPS) -> Tensor:
    """Return lm.train.optimizers.orthogonalize of matrices (N, R, C)."""
    a, b, c = optimizers.NEWTON_SCHULZ
    x = updates / sqrt(square_sum(updates)).add_(1e-7)[..., None]
    for _ in range(steps):
        gram = product(x, x.mT)
        x = product(product(gram, gram).mul_(c).add_(gram.mul_(b)), x).add_(x.mul_(a))
    return x


def nesterov(self, p: Tensor, momentum: float) -> Tensor:
    """Replace Muon._nesterov."""
    average = self.state[p].setdefault("momentum", torch.zeros_like(p))
    average.mul_(momentum).add_(p.grad * (1 - momentum))
    return (average * momentum).add_(p.grad * (1 - momentum))


def apply_update(p: Tensor, update: Tensor, shape, group: dict) -> None:
    """Replace lm.train.optimizers._apply."""
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.sub_(update * (group["lr"] * 0.2 * math.sqrt(max(shape))))


class AdamW(torch.optim.Optimizer):
    """AdamW without weight decay, which no group of a run with Muon has."""

    def __init__(self, groups, lr, betas, fused):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, (beta1, beta2) = self.state[p], group["betas"]
                if not state:
                    powers = torch.ones(2, dtype=torch.float64)
                    state |= {"mean": torch.zeros_like(p), "square": torch.zeros_like(p), "powers": powers}
                power1, power2 = state["powers"].mul_(torch.tensor([beta1, beta2], dtype=torch.float64)).tolist()
                size, root = group["lr"] / (1 - power1), math.sqrt(1 - power2)
                for x, g, m, v in chunks(p, p.grad, state["mean"], state["square"]):
                    m.mul_(beta1).add_(g * (1 - beta1))
                    v.mul_(beta2).add_((g * g).mul_(1 - beta2))
                    x.sub_((m * size).div_(sqrt(v).div_(root).add_(group["eps"])))


def average_of_units(model, world, x: Tensor, y: Tensor, unit_rows: int, jitter=None) -> float:
    """Replace lm.train.step.average_in_tree for a batch x, y that all ranks have: rank r computes units r, r + ranks, …

    Gradients of several units are added as integers, so any number of ranks gives the same bits.
    """
    units = list(zip(x.split(unit_rows), y.split(unit_rows), strict=True))
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    parameters, losses = list(model.parameters()), torch.zeros(len(units), dtype=torch.float64)
    totals = [torch.zeros(p.shape, dtype=torch.int64) for p in parameters]
    for number in range(rank, len(units), ranks):
        loss = model.loss(*units[number], jitter)
        losses[number] = loss.detach()
        loss.backward()
        if len(units) == 1:
            return float(losses)
        for total, p in zip(totals, parameters, strict=True):
            total.add_((p.grad.double() * GRADIENT_UNITS).round_().long())
            p.grad = None
    if ranks > 1:
        for total in (*totals, losses):
            dist.all_reduce(total)
    for total, p in zip(totals, parameters, strict=True):
        p.grad = (total.double() / (GRADIENT_UNITS * len(units))).float()
    return math.fsum(losses) / len(units)


def total_norm(world, gradients: list[Tensor]) -> Tensor:
    """Replace World.norm."""
    return sqrt(sum_tree(torch.cat([square_sum(g[None]) for g in gradients]), 0)[0, 0])


@contextlib.contextmanager
def exact_numerics():
    """Replace the functions of src that a step calls."""
    kernel = {"product": product, "products": product, "softmax_gradient": softmax_gradient}
    kernel |= {"nats_and_gradient_": nats_and_gradient_, "AttentionFunction": Attention, "GatedGELUFunction": GatedGELU}
    everywhere = {"has_fixed_order": lambda x, dtype: True}
    model = {"RMSNormFunction": RMSNorm, "rotary_table": rotary_table, "rotate": rotate, "token_nats": token_nats}
    with (
        patch.multiple(products, product=product, **everywhere),
        patch.multiple(kernels, **kernel, **everywhere),
        patch.multiple(gemma3, **model),
        patch.multiple(optimizers, orthogonalize=orthogonalize, _apply=apply_update),
        patch.object(optimizers.Muon, "_nesterov", nesterov),
        patch.object(torch.optim, "AdamW", AdamW),
        patch.object(step, "average_in_tree", average_of_units),
        patch.object(World, "norm", total_norm),
    ):
        yield
