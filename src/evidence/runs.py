"""Runs that were scored on the same documents, and groups of runs that differ only in their seed.

Legend: D documents, the same for all runs of a comparison, whatever their tokenizers.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np


class Measure(NamedTuple):
    """What runs are compared by."""

    unit: str
    key: str  # in JSON
    is_higher_better: bool


BITS_PER_BYTE = Measure("bits per byte", "bits_per_byte", is_higher_better=False)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run(abc.ABC):
    """One trained model, and what it reached on each document."""

    name: str
    seed: int | None  # None: unknown
    group: str = ""  # runs of one group have one configuration
    sources: np.ndarray | None = None  # (D,) what each document comes from, such as a part of a mixture
    documents: Sequence[str] = ()  # (D,) their names, () for their numbers

    @property
    @abc.abstractmethod
    def measure(self) -> Measure: ...

    @property
    @abc.abstractmethod
    def values(self) -> np.ndarray:
        """Return the values (D,), summed over each document."""

    @property
    @abc.abstractmethod
    def sizes(self) -> np.ndarray:
        """Return the sizes (D,) by whose sum that of the values is divided."""

    @property
    def configuration(self) -> str:
        """Return what made the run except its seed, as a text that runs of one configuration share."""
        return self.group

    @property
    def score(self) -> float:
        """Return Σ values / Σ sizes."""
        return float(self.values.sum() / self.sizes.sum())

    def name_of_document(self, position: int) -> str:
        return self.documents[position] if self.documents else str(position)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LossRun(Run):
    """A run with the loss of each document: the values are bits, the sizes are bytes."""

    nats: np.ndarray  # (D,) float64, summed over the tokens of the document
    utf8_bytes: np.ndarray  # (D,) int64

    @property
    def measure(self) -> Measure:
        return BITS_PER_BYTE

    @property
    def values(self) -> np.ndarray:
        return self.nats / math.log(2)

    @property
    def sizes(self) -> np.ndarray:
        return self.utf8_bytes


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ScoreRun(Run):
    """A run with a score of each item, such as 1 for a right answer; a document may have several items."""

    scores: np.ndarray  # (D,) float64, summed over the items of the document
    num_items: np.ndarray  # (D,) int64
    is_higher_better: bool

    @property
    def measure(self) -> Measure:
        return Measure("in score", "score", self.is_higher_better)

    @property
    def values(self) -> np.ndarray:
        return self.scores

    @property
    def sizes(self) -> np.ndarray:
        return self.num_items


R = TypeVar("R", bound=Run)


@dataclasses.dataclass(frozen=True, eq=False)
class Group(Generic[R]):
    """Runs of one configuration with different seeds, or a single run."""

    runs: list[R]
    whole: "Group[R] | None" = None  # the group of which these are some runs, and whose name they have

    @property
    def name(self) -> str:
        if self.whole:
            return self.whole.name
        first = self.runs[0]
        if len(self.runs) == 1:
            return first.name
        return first.group or f"{first.name}…{self.runs[-1].name}"

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    def of_seeds(self, seeds: Collection[int]) -> "Group[R]":
        """Return the runs of these seeds, in their order."""
        runs = [run for run in self.runs if run.seed in seeds]
        return Group(sorted(runs, key=lambda run: run.seed or 0), self)

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Return the mean over the runs of the values of each document (D,)."""
        return np.mean([run.values for run in self.runs], axis=0)

    @property
    def scores(self) -> np.ndarray:
        """Return the score of each run (runs,), over all documents."""
        return np.array([run.score for run in self.runs])


def group_by_seed(runs: Sequence[R]) -> list[Group[R]]:
    """Return groups in the order of their first runs.

    A repeated run of the same configuration and seed (on another machine, say) goes into another group.
    """
    groups: list[Group[R]] = []
    for run in runs:
        for group in groups:
            has_seed = run.seed is not None and run.seed in group.seeds
            if run.configuration == group.runs[0].configuration and not has_seed:
                group.runs.append(run)
                break
        else:
            groups.append(Group([run]))
    return groups


def sources_of(runs: Sequence[Run]) -> dict[str, np.ndarray]:
    """Return source → mask (D,) of its documents, for those with text; {} unless all runs have the same sources."""
    sources = runs[0].sources
    if sources is None:
        return {}
    for run in runs:
        if run.sources is None or not np.array_equal(sources, run.sources):
            return {}
    has_text = runs[0].sizes > 0
    return {str(name): sources == name for name in dict.fromkeys(sources[has_text])}
