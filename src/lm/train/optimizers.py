"""Optimizers and the learning-rate schedule, counted in optimizer steps."""

import math

import torch
from torch import Tensor, nn

# The quintic iteration of Jordan et al. (2024), "Muon": kellerjordan.github.io/posts/muon
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def learning_rate(
    step: int,
    max_steps: int,
    warmup_steps: int,
    peak_lr: float,
    min_lr: float,
    schedule: str,
    decay_share: float,
) -> float:
    """The rate of optimizer step `step` (from 0): linear warm-up, then `schedule` down to min_lr.

    "cosine" falls from the end of the warm-up on; "stable_decay" stays at the peak and falls
    linearly over the last `decay_share` of the run (Hägele et al. 2024).
    """
    if step < warmup_steps:
        return peak_lr * (step + 1) / warmup_steps
    if schedule == "cosine":
        progress = (step - warmup_steps) / max(1, max_steps - warmup_steps)
        return min_lr + (peak_lr - min_lr) * 0.5 * (1 + math.cos(math.pi * progress))
    decay_steps = max(1, round(decay_share * max_steps))
    remaining = min(1.0, (max_steps - step) / decay_steps)
    return min_lr + (peak_lr - min_lr) * remaining


def orthogonalize(updates: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """Bring the singular values of each matrix of (N, R, C), R ≤ C, near 1, computing in `dtype`.

    An odd polynomial in the matrix acts on its singular values alone (Newton-Schulz iteration).
    """
    a, b, c = NEWTON_SCHULZ
    x = (updates / (updates.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized, for weight matrices (Jordan et al. 2024).

    torch.optim.Muon takes one matrix at a time; here all of one shape are one batch of products, a
    third of the time for models of many small matrices, with the same result up to rounding. Updates
    have AdamW's size, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, arXiv 2502.16982), so that one
    learning rate serves both.
    """

    def __init__(self, params, lr: float, weight_decay: float, dtype: torch.dtype, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; `closure` is torch's interface and unused."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    update = self._nesterov(p, group["momentum"])
                    shape = (min(p.shape), max(p.shape))
                    by_shape.setdefault(shape, []).append((p, update if p.shape == shape else update.mT))
            for shape, pairs in by_shape.items():
                orthogonal = orthogonalize(torch.stack([u for _, u in pairs]), self.dtype)
                size = group["lr"] * 0.2 * max(shape) ** 0.5
                for (p, _), update in zip(pairs, orthogonal, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_((update if p.shape == shape else update.mT).float(), alpha=-size)

    def _nesterov(self, p: Tensor, momentum: float) -> Tensor:
        """Fold the gradient into the parameter's momentum and look one step ahead."""
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        average = state["momentum"].lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(average, momentum)


def build_optimizers(
    model: nn.Module,
    optimizer: str,
    weight_decay: float,
    betas: tuple[float, float],
    embedding_lr_factor: float,
    dtype: torch.dtype,
) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside the blocks and AdamW for the rest.

    Muon computes its products in `dtype`. Weight decay falls on matrices alone. Each group's
    `lr_factor` multiplies the scheduled rate; the embedding has its own.
    """
    embedding = [p for name, p in model.named_parameters() if "embed" in name]
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": embedding, "weight_decay": 0.0, "lr_factor": embedding_lr_factor},
        {"params": vectors, "weight_decay": 0.0, "lr_factor": 1.0},
    ]
    matrix_group = {"params": matrices, "weight_decay": weight_decay, "lr_factor": 1.0}
    if optimizer == "adamw":
        return [torch.optim.AdamW([*groups, matrix_group], lr=0.0, betas=betas, fused=True)]
    muon = Muon([matrix_group], lr=0.0, weight_decay=weight_decay, dtype=dtype)
    return [torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=True), muon]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], lr: float) -> None:
    """Give every group the scheduled rate times its own factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
