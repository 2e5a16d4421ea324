"""Runs that were scored on the same documents, and groups of runs that differ only in their seed.

Legend: D documents, the same for all runs of a comparison, whatever their tokenizers.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np


class Measure(NamedTuple):
    """What runs are compared by."""

    unit: str
    key: str  # in JSON
    is_higher_better: bool

    @property
    def better(self) -> str:
        return "higher" if self.is_higher_better else "lower"


BITS_PER_BYTE = Measure("bits per byte", "bits_per_byte", is_higher_better=False)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One trained model, and what it reached on each document: its loss in bits, or its score."""

    name: str
    seed: int | None  # None: unknown
    values: np.ndarray  # (D,) float64, summed over each document: bits, or scores of its items such as 1 for right
    sizes: np.ndarray  # (D,) int64, by whose sum that of the values is divided: bytes, or numbers of items
    configuration: str = ""  # what made the run except its seed: runs that share it differ only in their seed
    label: str = ""  # what a table calls this configuration
    measure: Measure = BITS_PER_BYTE
    documents: Sequence[str] = ()  # (D,) their names, () for their numbers
    sources: np.ndarray | None = None  # (D,) what each document comes from, such as a part of a mixture
    kind: str = ""  # of the file that it was read from

    @property
    def score(self) -> float:
        """Return Σ values / Σ sizes."""
        return float(self.values.sum() / self.sizes.sum())

    def name_of_document(self, position: int) -> str:
        return self.documents[position] if self.documents else str(position)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds, or a single run."""

    name: str
    runs: list[Run]
    repeats: list[Run]  # that have the values of one of these on all documents, and do not count

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    def of_seeds(self, seeds: Collection[int | None]) -> "Group":
        """Return the runs of these seeds, in their order, under the name of the group."""
        runs = [run for run in self.runs if run.seed in seeds]
        return Group(self.name, sorted(runs, key=lambda run: run.seed or 0), [])

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Return the mean over the runs of the values of each document (D,)."""
        return np.mean([run.values for run in self.runs], axis=0)

    @property
    def scores(self) -> np.ndarray:
        """Return the score of each run (runs,), over all documents."""
        return np.array([run.score for run in self.runs])


def make_groups(runs: Sequence[Run]) -> list[Group]:
    """Return groups in the order of their first runs, each with another name.

    A run that repeats another one counts once. A run of a seed that its group has, with other values (on another
    machine, say), goes into another group.
    """
    groups: list[Group] = []
    for run in runs:
        same = [group for group in groups if group.runs[0].configuration == run.configuration]
        repeated = [group for group in same if any(is_repeat(run, of) for of in group.runs)]
        free = [group for group in same if run.seed is None or run.seed not in group.seeds]
        if repeated:
            repeated[0].repeats.append(run)
        elif free:
            free[0].runs.append(run)
        else:
            groups.append(Group("", [run], []))

    # Name them, and tell groups of one name apart by their runs.
    names = [group.runs[0].label or span_of(group) for group in groups]
    named = []
    for name, group in zip(names, groups, strict=True):
        if names.count(name) > 1:
            name = f"{name} ({span_of(group)})"
        named.append(dataclasses.replace(group, name=name))
    return named


def is_repeat(run: Run, of: Run) -> bool:
    """Return whether two runs of one configuration are the same run, by their values on all documents.

    Runs of two known seeds may have equal scores, or equal rounded losses of a single document, by chance.
    """
    is_same_seed = run.seed == of.seed or None in (run.seed, of.seed)
    is_by_chance = run.measure != BITS_PER_BYTE or len(run.values) == 1
    return np.array_equal(run.values, of.values) and (is_same_seed or not is_by_chance)


def span_of(group: Group) -> str:
    first, *others = group.runs
    return f"{first.name}…{others[-1].name}" if others else first.name


def text_hash(run: Run) -> str:
    """Return a short hash of the names and sizes of the documents."""
    rows = [f"{run.name_of_document(i)}\t{size}" for i, size in enumerate(run.sizes.tolist())]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def sources_of(run: Run) -> dict[str, np.ndarray]:
    """Return source → mask (D,) of its documents, for those with text."""
    if run.sources is None:
        return {}
    return {str(name): run.sources == name for name in dict.fromkeys(run.sources[run.sizes > 0])}
