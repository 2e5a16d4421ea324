"""Choose the entries of the vocabulary from which a training step estimates its loss."""

import torch
from torch import Tensor

from lm.exact.order import log


def sample_vocabulary(targets: Tensor, weights: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Choose entries of the vocabulary for a softmax: all that are targets, and a sample of the others.

    targets: (N,) int64. weights: (V,) int64, positive. draws: (K,) float64, uniform in [0, 1), on the CPU. Return the
    entries (S,) int64, the targets first; the positions of the targets among them (N,); and for each entry after the
    targets the logarithm of how many entries it stands for, float32. S is K, or more if more than half of K are
    targets. The other entries are laid on a line in the order of their ids, each as long as its weight. The line is cut
    into equal strata, and a random point of each stratum chooses the entry on which it falls. So the *sum* of
    exp(logit) over all entries is estimated without bias (importance sampling: Bengio and Senécal 2003; with the
    targets of a batch: Jean et al. 2015, arXiv 1412.2007). Its logarithm, the loss, is too low on average, and the
    gradient of entries that are seldom drawn is too small. Weights in proportion to the frequencies keep both errors
    small (docs/experiments.md).
    """
    # Lay the entries that are not targets on a line; integers are the same on every device.
    present, positions = targets.unique(return_inverse=True)
    absent_weights = weights.index_fill(0, present, 0)
    ends = absent_weights.cumsum(0)
    length = int(ends[-1])

    # Choose a point of each stratum, on the CPU, because GPUs are slow in float64.
    num_absent = len(weights) - len(present)
    num_drawn = min(max(len(draws) - len(present), len(draws) // 2), num_absent)
    stratum = length / max(1, num_drawn)
    points = ((torch.arange(num_drawn) + draws[:num_drawn]) * stratum).long()
    points.clamp_(max=max(0, length - 1))  # a draw next to 1 is rounded up to it

    # Find the entries at these points.
    drawn = torch.searchsorted(ends, points.to(ends.device), right=True)
    factors = stratum / weights[drawn].cpu().double()
    log_factors = torch.from_numpy(log(factors.numpy())).float()
    return torch.cat([present, drawn]), positions, log_factors.to(ends.device)
