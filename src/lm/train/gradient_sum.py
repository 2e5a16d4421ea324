"""The mean gradient of a batch, summed in one fixed binary tree over units of `train.micro_batch_tokens`.

Ranks hold neighbouring units, so that a rank sums a subtree and the ranks sum the rest of the same tree: the bits are
the same for 1, 2, 4, … ranks. At most log2(units) gradients wait in memory for their other half.
"""

import math

import torch
from torch import Tensor

from lm.model.gemma3 import Gemma3Model
from lm.train.world import World


def average_gradients(model: Gemma3Model, world: World, x: Tensor, y: Tensor, unit_rows: int) -> float:
    """Set each gradient to the mean over the units of all ranks; return the mean loss in nats per token.

    x, y: (B, T) int64, this rank's rows of the batch; `unit_rows` divides B.
    """
    losses: list[float] = []
    units = list(zip(x.split(unit_rows), y.split(unit_rows), strict=True))
    gradients = sum_gradients(model, units, losses)
    world.add_in_pairs(gradients)
    num_units = len(units) * world.world_size
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient.div_(num_units)
    return math.fsum(world.all_gather_numbers(losses)) / num_units


def sum_gradients(model: Gemma3Model, units: list[tuple[Tensor, Tensor]], losses: list[float]) -> list[Tensor]:
    """Return the sum of the gradients of the units' mean losses, half by half; append each loss to `losses`."""
    if len(units) == 1:
        loss = model.loss(*units[0])
        losses.append(loss.item())
        return [gradient.contiguous() for gradient in torch.autograd.grad(loss, list(model.parameters()))]
    middle = len(units) // 2
    total = sum_gradients(model, units[:middle], losses)
    for gradient, other in zip(total, sum_gradients(model, units[middle:], losses), strict=True):
        gradient.add_(other)
    return total
