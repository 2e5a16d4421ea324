"""Made-up runs of 40 documents, for tests of comparisons."""

import numpy as np

from support.loss_cases import LN2, corpus
from tools.common.runs import Run

PARTS = np.array(["stories"] * 15 + ["headers"] * 25, object)


def run(name: str, seed: int = 1, shift: float = 0.0, params: dict | None = None, curve=(), **inputs: str) -> Run:
    """Return a made-up run of 40 documents, `shift` bits per byte above one of the same seed without it."""
    nats, _, sizes = corpus(np.random.default_rng(11), 40)
    nats = nats + shift * sizes * LN2 + np.random.default_rng(seed).normal(0, 0.001, 40) * sizes
    params = {"train.seed": seed, **(params or {})}
    return Run(name, nats, sizes.astype(np.int64), None, params, inputs, 1000, 900, 70, None, list(curve))


def seeds_of(name: str, seeds, shift: float = 0.0, **params) -> list[Run]:
    return [run(f"{name}-{seed}", seed, shift, params) for seed in seeds]
