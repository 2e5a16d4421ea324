"""The learning-rate schedule, counted in optimizer steps."""

import math

from lm.train.config import TrainParams


def learning_rate(step: int, params: TrainParams) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0: linear warm-up, then `params.schedule`.

    "cosine" falls to min_lr after the warm-up; "wsd" stays at the peak and falls linearly over the last
    `decay_fraction` of the run (Hägele et al. 2024, arXiv 2405.18392). Where both ramps overlap, the smaller counts.
    """
    max_steps, span = params.max_steps, params.peak_lr - params.min_lr
    if params.schedule == "cosine":
        progress = max(0, step - params.warmup_steps) / max(1, max_steps - params.warmup_steps)
        scheduled = params.min_lr + span * 0.5 * (1 + math.cos(math.pi * progress))
    else:
        decay_steps = max_steps - decay_begins(params)
        scheduled = params.min_lr + span * min(1.0, (max_steps - step) / decay_steps)
    warmup = params.peak_lr * (step + 1) / params.warmup_steps if step < params.warmup_steps else math.inf
    return min(warmup, scheduled)


def decay_begins(params: TrainParams) -> int:
    """Return the step up to which the rates do not depend on the length of the run; 0 for "cosine"."""
    if params.schedule == "cosine":
        return 0
    return params.max_steps - max(1, round(params.decay_fraction * params.max_steps))
