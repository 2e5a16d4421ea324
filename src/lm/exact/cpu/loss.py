"""Cross-entropy."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import numpy as np
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ONE
from lm.exact.cpu.elementary import log
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.products import multiply_rows, pack, tiles_of_part
from lm.exact.cpu.registers import any_layout
from lm.exact.cpu.softmax import exponentials_

LOGIT_ROWS = 24  # rows of logits in memory per thread in `token_nats`
LOSS_ROWS = 512  # rows of logits in memory in the loss


@loop
def nats_and_exponentials_(x, target):
    """Replace logits x (V,) by exp(x - largest); return their sum, and the nats of the target."""
    logit = x[target]
    largest, total = exponentials_(x)
    return total, log(total) - (logit - largest)


@loop
def softmax_less_targets_loop(logits, log_factors, targets, nats, part, parts):
    start = logits.shape[1] - len(log_factors)
    for n in rows_of_part(len(logits), part, parts):
        row = logits[n]
        tail = row[start:]
        for j in range(len(log_factors)):
            tail[j] += log_factors[j]
        target = targets[n]
        total, nats[n] = nats_and_exponentials_(row, target)
        for j in range(len(row)):
            row[j] /= total
        row[target] -= ONE


@loop
def token_nats_loop(h, packed, targets, nats, num_entries, part, parts):
    logits = np.empty((LOGIT_ROWS, num_entries), np.float32)
    all_terms = (0, h.shape[1])
    first, last = tiles_of_part(len(h), part, parts)
    for top in range(first, last, LOGIT_ROWS):
        # The logits of some rows.
        count = min(LOGIT_ROWS, last - top)
        some = any_layout(h[top : top + count])
        multiply_rows(some, packed, any_layout(logits), (0, count), all_terms, False)

        # Their nats.
        for i in range(count):
            n = top + i
            _, nats[n] = nats_and_exponentials_(logits[i], targets[n])


def loss_rows(num_entries: int) -> int:
    """Return how many rows of logits the loss computes at a time, a multiple of TERMS."""
    return LOSS_ROWS


def empty_logits(h: Tensor, num_rows: int, num_entries: int) -> Tensor:
    """Return space for logits (N, V)."""
    return h.new_empty(num_rows, num_entries)


def softmax_less_targets(logits: Tensor, log_factors: Tensor, targets: Tensor) -> Tensor:
    """Replace logits (N, V) by their gradient, the softmax less 1 at targets (N,); return the nats (N,).

    `log_factors` (W,) are added to the logits of the last W entries before.
    """
    nats = logits.new_empty(len(logits))
    run(softmax_less_targets_loop, logits, log_factors, targets, nats, work=2 * logits.numel())
    return nats


def token_nats(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Return the nats (N,) of targets (N,) given h (N, C) and the head (V, C)."""
    num_entries = len(head)
    nats = h.new_empty(len(h))
    work = 4 * len(h) * num_entries
    run(token_nats_loop, h, pack(head.mT), targets, nats, num_entries, work=work)
    return nats
