"""Made-up runs of 40 documents with their facts, for tests of comparisons."""

import dataclasses

import numpy as np

from evidence.runs import Run
from support.loss_cases import LN2, corpus
from tools.record.run import Facts

NUM_DOCUMENTS = 40
# The source of a mixture from which each document comes.
SOURCES = np.array(["stories"] * 15 + ["headers"] * 25, object)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MadeUpRun(Run):
    """A run that knows its facts."""

    facts: Facts

    def but(self, **changes) -> "MadeUpRun":
        """Return the same run with other facts."""
        return dataclasses.replace(self, facts=dataclasses.replace(self.facts, **changes))


def run(name: str, seed: int = 1, shift: float = 0.0, params: dict | None = None, curve=(), **inputs: str) -> MadeUpRun:
    """Return a made-up run, `shift` bits per byte above one of the same seed without it.

    `curve` are its validations; `inputs` are hashes by path.
    """
    nats, _, utf8_bytes = corpus(np.random.default_rng(11), NUM_DOCUMENTS)
    noise = np.random.default_rng(seed).normal(0, 0.001, NUM_DOCUMENTS)
    facts = Facts(
        params={"train.seed": seed} | (params or {}),
        inputs=inputs,
        tokens_seen=1000,
        best_tokens_seen=900,
        num_parameters=70,
        train_seconds=None,
        validations=list(curve),
    )
    return MadeUpRun(
        name=name,
        seed=seed,
        values=(nats + (shift * LN2 + noise) * utf8_bytes) / LN2,
        sizes=utf8_bytes.astype(np.int64),
        configuration=facts.configuration,
        facts=facts,
    )


def seeds_of(name: str, seeds, shift: float = 0.0, params: dict | None = None) -> list[MadeUpRun]:
    """Return a run of each seed, with the names NAME-SEED."""
    return [run(f"{name}-{seed}", seed, shift, params) for seed in seeds]


def facts_of(*runs: MadeUpRun) -> dict[str, Facts]:
    return {each.name: each.facts for each in runs}


def score_of(run: Run) -> float:
    """Return the bits per byte of a run over all documents."""
    return run.values.sum() / run.sizes.sum()
