"""Attention to windows of at most SHORT_WINDOW tokens, token by token."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import numpy as np
import torch
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ZERO
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.reductions import row_dot
from lm.exact.cpu.registers import fma
from lm.exact.cpu.softmax import softmax_


@loop
def short_attention_loop(q, k, v, first, p, out, part, parts):
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    G = H // K  # query heads of a key/value head
    for n in rows_of_part(B * T, part, parts):
        b = n // T
        t = n % T
        begin = first[b, t]
        end = S - T + t + 1
        for h in range(H):
            group = h // G

            # The softmax of the scores.
            row = p[b, t, h, : end - begin]
            for s in range(begin, end):
                row[s - begin] = row_dot(q[b, t, h], k[b, s, group])
            softmax_(row)

            # The sum of the values.
            result = out[b, t, h]
            for j in range(D):
                result[j] = ZERO
            for s in range(begin, end):
                weight = row[s - begin]
                value = v[b, s, group]
                for j in range(D):
                    result[j] = fma(weight, value[j], result[j])


@loop
def short_attention_gradient_loop(grad, q, k, v, first, p, grad_q, grad_k, grad_v, part, parts):
    B, T, H, D = q.shape
    K = k.shape[2]
    G = H // K  # query heads of a key/value head
    for n in rows_of_part(B * K, part, parts):
        b = n // K
        group = n % K
        slopes = np.empty(p.shape[3], np.float32)  # the gradient of the softmax
        grad_k[b, :, group] = ZERO
        grad_v[b, :, group] = ZERO
        for t in range(T):
            begin = first[b, t]
            end = t + 1
            num_seen = end - begin
            for h in range(group * G, (group + 1) * G):
                # The gradient of the softmax, and the component of it that the softmax removes.
                own = grad[b, t, h]
                weights = p[b, t, h, :num_seen]
                slope = slopes[:num_seen]
                for s in range(begin, end):
                    slope[s - begin] = row_dot(own, v[b, s, group])
                along = row_dot(slope, weights)

                # What each position adds to the gradients of this query, of its key and of its value.
                query = q[b, t, h]
                of_query = grad_q[b, t, h]
                for j in range(D):
                    of_query[j] = ZERO
                for s in range(begin, end):
                    weight = weights[s - begin]
                    of_score = (slope[s - begin] - along) * weight
                    key = k[b, s, group]
                    of_key = grad_k[b, s, group]
                    of_value = grad_v[b, s, group]
                    for j in range(D):
                        of_query[j] = fma(of_score, key[j], of_query[j])
                        of_key[j] = fma(of_score, query[j], of_key[j])
                        of_value[j] = fma(weight, own[j], of_value[j])


def short_attention(q: Tensor, k: Tensor, v: Tensor, first: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return the results of `attention` for a window of at most SHORT_WINDOW tokens; p (B, T, H, W) begins at first."""
    B, T, H, _ = q.shape
    out = torch.empty_like(q)
    p = q.new_empty(B, T, H, min(window, k.shape[1]))
    run(short_attention_loop, q, k, v, first, p, out, work=8 * p.numel())
    return out, p


def short_attention_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, first: Tensor, p: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q (B, T, H, D), k and v (B, T, K, D) of `short_attention`, given that of its result."""
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    run(short_attention_gradient_loop, grad, q, k, v, first, p, *gradients, work=16 * p.numel())
    return gradients
