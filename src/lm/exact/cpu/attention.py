"""Attention to windows of more than SHORT_WINDOW tokens, by products of matrices."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import numpy as np
import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ZERO
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.products import multiply_rows, pack_here
from lm.exact.cpu.reductions import row_dot
from lm.exact.cpu.registers import any_layout
from lm.exact.cpu.softmax import softmax_

BAND = 48  # rows of scores that are computed together: they fit into the cache


@loop
def keep_range_(x, first, last):
    """Replace all numbers of x (S,) by 0 but those from `first` to `last`."""
    x[:first] = ZERO
    x[last:] = ZERO


@loop
def attend_group(q, k, v, first, p, out):
    """Compute `attention` of the query heads of one key/value head: q (T, G, D), k, v (S, D), p (G, T, S)."""
    T, G, D = q.shape
    S = len(k)
    past = S - T  # positions before the first query
    keys = pack_here(any_layout(k.T))
    values = pack_here(any_layout(v))
    for h in range(G):
        scores = any_layout(p[h])
        queries = any_layout(q[:, h])
        result = any_layout(out[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            band = (top, bottom)
            seen = past + bottom  # positions that the last row of the band sees

            # The scores.
            multiply_rows(queries, keys, scores[:, :seen], band, (0, D), False)

            # Their softmax.
            for t in range(top, bottom):
                begin = first[t]
                end = past + t + 1
                softmax_(p[h, t, begin:end])
                keep_range_(p[h, t], begin, end)

            # The sums of the values.
            multiply_rows(scores, values, result, band, (0, seen), False)


@loop
def attention_loop(q, k, v, first, p, out, part, parts):
    B = len(q)
    K = k.shape[2]
    G = q.shape[2] // K
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        heads = slice(group * G, (group + 1) * G)
        attend_group(q[b, :, heads], k[b, :, group], v[b, :, group], first[b], p[b, heads], out[b, :, heads])


@loop
def attend_group_gradient(grad, q, k, v, first, p, grad_q, grad_k, grad_v):
    """Compute `attention_gradient` of the query heads of one key/value head."""
    T, G, D = q.shape
    slopes = np.empty((T, T), np.float32)  # the gradient of the scores
    of_scores = any_layout(slopes)
    of_k = any_layout(grad_k)
    of_v = any_layout(grad_v)
    keys = pack_here(any_layout(k))
    values = pack_here(any_layout(v.T))
    for h in range(G):
        own = any_layout(grad[:, h])
        of_q = any_layout(grad_q[:, h])
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            band = (top, bottom)

            # The gradient of the softmax.
            multiply_rows(own, values, of_scores[:, :bottom], band, (0, D), False)

            # The gradient of the scores.
            for t in range(top, bottom):
                begin = first[t]
                end = t + 1
                row = slopes[t, begin:end]
                weights = p[h, t, begin:end]
                along = row_dot(row, weights)  # the component that the softmax removes
                for j in range(len(row)):
                    row[j] = (row[j] - along) * weights[j]
                keep_range_(slopes[t], begin, end)

            # The gradient of the queries.
            multiply_rows(of_scores, keys, of_q, band, (0, bottom), False)

        # The gradients of keys and values, to which the other heads are added. No row before a position sees it.
        grads = pack_here(own)
        queries = pack_here(any_layout(q[:, h]))
        adds = h > 0
        for top in range(0, T, BAND):
            bottom = min(T, top + BAND)
            band = (top, bottom)
            multiply_rows(any_layout(p[h].T), grads, of_v, band, (top, T), adds)
            multiply_rows(of_scores.T, queries, of_k, band, (top, T), adds)


@loop
def attention_gradient_loop(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    B = len(q)
    K = k.shape[2]
    G = q.shape[2] // K
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        heads = slice(group * G, (group + 1) * G)
        attend_group_gradient(
            grad[b, :, heads],
            q[b, :, heads],
            k[b, :, group],
            v[b, :, group],
            first[b],
            p[b, heads],
            grad_q[b, :, heads],
            grad_k[b, :, group],
            grad_v[b, :, group],
        )


def attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of q k^T times v (B, T, H, D), and the softmax p (B, H, T, S).

    q: (B, T, H, D), scaled, the last T positions; k, v: (B, S, K, D). A position sees those from first[b, t] on up to
    itself; first is (B, T) int32. p is 0 elsewhere.
    """
    B, T, H, _ = q.shape
    out = torch.empty_like(q)
    p = q.new_empty(B, H, T, k.shape[1])
    run(attention_loop, q, k, v, first, p, out, work=8 * p.numel())
    return out, p


def attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (B, T, H, D), k and v (B, T, K, D) of `attention` with S = T, given its gradient."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run(attention_gradient_loop, grad, q, k, v, first, p, *gradients, work=16 * p.numel())
    return gradients
