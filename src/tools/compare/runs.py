"""Runs → groups that differ only by seed → what separates two groups, in losses and in what made them.

D validation documents, the same for every run, whatever its tokenizer.
"""

import dataclasses
import functools
import itertools
import json

import numpy as np

from tools.common.statistics import Difference, bits_per_byte, paired_difference, welch

SEED = "train.seed"
ABSENT = "(none)"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One trained and evaluated model.

    nats float64, utf8_bytes int64, chose_the_model bool, all (D,); params by dotted name; inputs: path →
    hash of the data and code that the stages read; figures: tokens_seen, best_tokens_seen, parameters,
    train_seconds.
    """

    name: str
    nats: np.ndarray
    utf8_bytes: np.ndarray
    chose_the_model: np.ndarray
    params: dict[str, object]
    inputs: dict[str, str]
    figures: dict[str, float]

    @property
    def bits_per_byte(self) -> float:
        """Over all documents."""
        return bits_per_byte(self.nats, self.utf8_bytes)

    @property
    def configuration(self) -> str:
        """All that made the run but its seed, as one comparable string."""
        others = {name: value for name, value in self.params.items() if name != SEED}
        return json.dumps([others, self.inputs], sort_keys=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds; one run alone is a group as well."""

    runs: list[Run]

    @property
    def name(self) -> str:
        """The run's name, or the first and the last."""
        return self.runs[0].name if len(self.runs) == 1 else f"{self.runs[0].name}…{self.runs[-1].name}"

    @functools.cached_property
    def nats(self) -> np.ndarray:
        """(D,) mean over the runs."""
        return np.mean([run.nats for run in self.runs], axis=0)

    @property
    def bits_per_byte(self) -> np.ndarray:
        """(runs,) over all documents."""
        return np.array([run.bits_per_byte for run in self.runs])


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """B - A: over all documents, over those that chose neither's best model, and over seeds."""

    a: Group
    b: Group
    documents: Difference
    unseen: Difference | None
    num_unseen: int
    seeds: Difference


def group_by_seed(runs: list[Run]) -> list[Group]:
    """Groups in the order of their first runs. The same configuration and seed a second time (run again,
    perhaps on another machine) says nothing about seeds and goes into another group."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        for copy in itertools.count():
            group = groups.setdefault((run.configuration, copy), [])
            if run.params[SEED] not in [other.params[SEED] for other in group]:
                group.append(run)
                break
    return [Group(members) for members in groups.values()]


def compare_groups(a: Group, b: Group, seed: int, confidence: float, resamples: int) -> Comparison:
    """The differences between two groups; documents are resampled with `seed`."""
    first = a.runs[0]
    unseen = ~np.any([run.chose_the_model for run in a.runs + b.runs], axis=0)

    def paired(keep: np.ndarray) -> Difference:
        rng = np.random.default_rng(seed)
        return paired_difference(a.nats[keep], b.nats[keep], first.utf8_bytes[keep], rng, confidence, resamples)

    return Comparison(
        a, b, paired(np.ones_like(unseen)), paired(unseen) if unseen.any() and not unseen.all() else None,
        int(unseen.sum()), welch(a.bits_per_byte, b.bits_per_byte, confidence),
    )  # fmt: skip


def what_differs(a: Group, b: Group) -> list[tuple[str, object, object]]:
    """Rows (name, of A, of B): the parameters, then the inputs, that are not equal.

    Seeds count only where both are one run: several on a side are what the grouping is for.
    """
    first_a, first_b = a.runs[0], b.runs[0]
    left_out = {SEED} if len(a.runs) + len(b.runs) > 2 else set()
    rows = []
    for of_a, of_b in ((first_a.params, first_b.params), (short(first_a.inputs), short(first_b.inputs))):
        for name in sorted(of_a.keys() | of_b.keys()):
            values = of_a.get(name, ABSENT), of_b.get(name, ABSENT)
            if values[0] != values[1] and name not in left_out:
                rows.append((name, *values))
    return rows


def short(hashes: dict[str, str]) -> dict[str, str]:
    """Hashes by their first ten digits, as people compare them."""
    return {path: digest[:10] for path, digest in hashes.items()}


def most_changed(comparison: Comparison, number: int) -> np.ndarray:
    """The documents whose bits changed most, in either direction, first."""
    return np.argsort(-np.abs(comparison.b.nats - comparison.a.nats), kind="stable")[:number]
