"""Optimizers and the learning-rate schedule, counted in optimizer steps."""

import math

import torch
from torch import nn


def learning_rate(
    step: int, max_steps: int, warmup_steps: int, peak_lr: float, min_lr: float, schedule: str, decay_share: float
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


def build_optimizers(
    model: nn.Module, optimizer: str, weight_decay: float, betas: tuple[float, float], embedding_lr_factor: float
) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices inside the blocks and AdamW for the rest.

    Weight decay falls on matrices alone. Muon's updates are scaled to AdamW's size
    (0.2·sqrt(max(rows, columns)): Liu et al. 2025), so that one peak_lr serves both. Each group's
    `lr_factor` multiplies the scheduled rate; the embedding has its own.
    """
    embedding = [p for name, p in model.named_parameters() if "embed" in name]
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": embedding, "weight_decay": 0.0, "lr_factor": embedding_lr_factor},
        {"params": vectors, "weight_decay": 0.0, "lr_factor": 1.0},
    ]
    if optimizer == "adamw":
        groups.append({"params": matrices, "weight_decay": weight_decay, "lr_factor": 1.0})
        return [torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=True)]
    muon_group = {"params": matrices, "weight_decay": weight_decay, "lr_factor": 1.0}
    muon = torch.optim.Muon([muon_group], lr=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=True), muon]


def set_learning_rate(optimizers: list[torch.optim.Optimizer], lr: float) -> None:
    """Give every group the scheduled rate times its own factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
