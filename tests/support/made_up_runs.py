"""Made-up runs of 40 documents, as unequal in length as those of the default corpus, for tests of comparisons."""

import dataclasses
import math

import numpy as np

from evidence.runs import Run
from tools.record.run import Facts

LN2 = math.log(2)
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
    rng = np.random.default_rng(11)
    utf8_bytes = np.maximum(rng.lognormal(7.6, 1.34, NUM_DOCUMENTS), 50).round()
    bits_per_byte = rng.normal(1.3, 0.3, NUM_DOCUMENTS)
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
        values=(bits_per_byte + shift + noise / LN2) * utf8_bytes,
        sizes=utf8_bytes.astype(np.int64),
        configuration=facts.configuration,
        facts=facts,
    )


def seeds_of(name: str, seeds, shift: float = 0.0, params: dict | None = None) -> list[MadeUpRun]:
    """Return a run of each seed, with the names NAME-SEED."""
    return [run(f"{name}-{seed}", seed, shift, params) for seed in seeds]


def facts_of(*runs: MadeUpRun) -> dict[str, Facts]:
    return {each.name: each.facts for each in runs}
