"""Cross-entropy."""

import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.constants import LANES, UNROLL
from lm.exact.gpu.elementary import exp, log
from lm.exact.gpu.launch import cdiv, launch
from lm.exact.gpu.products import multiply, pack
from lm.exact.gpu.reductions import row_exponentials, row_max

LOSS_NUMBERS = 2**28  # logits in memory in the loss, 1 GiB
LOSS_ROWS = 4  # rows of logits of a program, each computed by one warp
ROW_MULTIPLE = 16  # numbers, 64 bytes: a row of logits begins at a multiple of them


@triton.jit
def loss_kernel(logits, targets, nats, num_rows, V, row_stride, GRADIENT: tl.constexpr, ROWS: tl.constexpr):
    """Write the nats of rows of logits; with GRADIENT, replace the logits by the softmax less 1 at the target."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    width = tl.where(is_row, V, 0)[:, None]
    start = logits + row.to(tl.int64)[:, None] * row_stride

    # The nats of the targets.
    largest = row_max(start, width, V, ROWS)
    target = tl.load(targets + row, mask=is_row, other=0)
    logit = tl.load(logits + row.to(tl.int64) * row_stride + target, mask=is_row, other=0.0)
    total = row_exponentials(start, largest, width, V, ROWS)
    value = log(total) - (logit - largest).to(tl.float64)
    tl.store(nats + row, value.to(tl.float32), mask=is_row)

    # The gradient.
    if GRADIENT:
        tl.debug_barrier()  # no thread writes before all have read
        lane = tl.arange(0, LANES)[None, :]
        for j in tl.range(0, V, LANES, loop_unroll_factor=UNROLL):
            inside = j + lane < width
            number = tl.load(start + j + lane, mask=inside, other=0.0)
            p = tl.math.div_rn(exp(number - largest[:, None]), total[:, None])
            is_target = j + lane == target[:, None]
            result = tl.where(is_target, p - 1.0, p)
            tl.store(start + j + lane, result, mask=inside)


def loss_rows(num_entries: int) -> int:
    """Return how many rows of logits the loss computes at a time, a multiple of TERMS."""
    num_chains = LOSS_NUMBERS // (num_entries * order.TERMS)
    return max(1, num_chains) * order.TERMS


def empty_logits(h: Tensor, num_rows: int, num_entries: int) -> Tensor:
    """Return space for logits (N, V), whose rows begin at multiples of 64 bytes, so that products copy four at a time.

    Compiled for an H100, the product of logits and the head (50,257 entries) then takes 168 registers a thread instead
    of 254, and a quarter as many copies (not measured).
    """
    padded_entries = cdiv(num_entries, ROW_MULTIPLE) * ROW_MULTIPLE
    return h.new_empty(num_rows, padded_entries)[:, :num_entries]


def run_loss(logits: Tensor, targets: Tensor, nats: Tensor, with_gradient: bool) -> None:
    """Write the nats (N,) of targets (N,); `with_gradient`, replace the logits (N, V) by their gradient."""
    num_rows, num_entries = logits.shape
    grid = (cdiv(num_rows, LOSS_ROWS),)
    arguments = logits, targets, nats, num_rows, num_entries, logits.stride(0)
    launch(loss_kernel, grid, *arguments, GRADIENT=with_gradient, ROWS=LOSS_ROWS)


def softmax_less_targets(logits: Tensor, log_factors: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (N, V) by their gradient, the softmax less 1 at targets (N,); return the nats (N,).

    `log_factors` (W,) are added to the logits of the last W entries before.
    """
    num_rows, num_entries = logits.shape
    if len(log_factors) > 0:
        logits[:, num_entries - len(log_factors) :] += log_factors
    nats = logits.new_empty(num_rows)
    run_loss(logits, targets, nats, with_gradient=True)
    return nats


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C)."""
    num_rows = len(h)
    num_entries = len(head)
    nats = h.new_empty(num_rows)
    columns = pack(head.mT)
    rows = max(1, min(loss_rows(num_entries), num_rows))  # at a time
    space = empty_logits(h, rows, num_entries)
    for start in range(0, num_rows, rows):
        chunk = slice(start, start + rows)
        some = h[chunk]
        logits = multiply(some, columns, space[: len(some)])
        run_loss(logits, targets[chunk], nats[chunk], with_gradient=False)
    return nats
