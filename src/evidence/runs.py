"""Runs that were scored on the same documents, and groups of runs that differ only in their seed.

Legend: D documents, the same for all runs of a comparison, whatever their tokenizers.
"""

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np


class Measure(NamedTuple):
    """What runs are compared by."""

    unit: str
    key: str  # in JSON
    is_higher_better: bool


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

    @property
    def score(self) -> float:
        """Return Σ values / Σ sizes."""
        return float(self.values.sum() / self.sizes.sum())

    def name_of_document(self, position: int) -> str:
        return self.documents[position] if self.documents else str(position)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds, or a single run."""

    runs: list[Run]
    whole: "Group | None" = None  # the group of which these are some runs, and whose name they have

    @property
    def name(self) -> str:
        if self.whole:
            return self.whole.name
        first = self.runs[0]
        if len(self.runs) == 1:
            return first.name
        return first.label or f"{first.name}…{self.runs[-1].name}"

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]

    def of_seeds(self, seeds: Collection[int]) -> "Group":
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


def make_groups(runs: Sequence[Run]) -> list[Group]:
    """Return groups in the order of their first runs.

    A repeated run of the same configuration and seed (on another machine, say) goes into another group.
    """
    groups: list[Group] = []
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
