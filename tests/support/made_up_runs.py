"""Made-up runs of 40 documents, for tests of comparisons."""

import numpy as np

from support.loss_cases import LN2, corpus
from tools.common.runs import Run

NUM_DOCUMENTS = 40
# The source of a mixture from which each document comes.
SOURCES = np.array(["stories"] * 15 + ["headers"] * 25, object)


def run(name: str, seed: int = 1, shift: float = 0.0, params: dict | None = None, curve=(), **inputs: str) -> Run:
    """Return a made-up run, `shift` bits per byte above one of the same seed without it.

    `curve` are its validations; `inputs` are hashes by path.
    """
    nats, _, utf8_bytes = corpus(np.random.default_rng(11), NUM_DOCUMENTS)
    noise = np.random.default_rng(seed).normal(0, 0.001, NUM_DOCUMENTS)
    return Run(
        name=name,
        seed=seed,
        nats=nats + (shift * LN2 + noise) * utf8_bytes,
        utf8_bytes=utf8_bytes.astype(np.int64),
        params={"train.seed": seed} | (params or {}),
        inputs=inputs,
        tokens_seen=1000,
        best_tokens_seen=900,
        num_parameters=70,
        train_seconds=None,
        validations=list(curve),
    )


def seeds_of(name: str, seeds, shift: float = 0.0, params: dict | None = None) -> list[Run]:
    """Return a run of each seed, with the names NAME-SEED."""
    return [run(f"{name}-{seed}", seed, shift, params) for seed in seeds]


def score_of(run: Run) -> float:
    """Return the bits per byte of a run over all documents."""
    bits = run.nats.sum() / LN2
    return bits / run.utf8_bytes.sum()
