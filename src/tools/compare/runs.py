"""Runs, groups of runs that differ only in their seed, and the difference between two groups.

D is the number of validation documents, the same for every run, whatever its tokenizer.
"""

import dataclasses
import functools
import itertools
import json
import math
from typing import NamedTuple

import numpy as np

from lm.evaluate.intervals import Estimate, ratio_interval
from tools.common.statistics import bits_per_byte, welch

SEED = "train.seed"
ABSENT = "(none)"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One trained and evaluated model.

    nats float64 and utf8_bytes int64 (D,); selection_nats, selection_bytes (D,): the same over the tokens that
    selected the best model, None if not recorded; params by dotted name; inputs: path → hash of the data and
    code that the stages read; figures: tokens seen, tokens seen by the best model, parameters, training
    seconds on this machine if known;
    parts: the part of the mixture that holds each document (D,), None for a plain source; validations: the rows of
    plots/validation.csv as text by column.
    """

    name: str
    nats: np.ndarray
    utf8_bytes: np.ndarray
    selection_nats: np.ndarray | None
    selection_bytes: np.ndarray | None
    params: dict[str, object]
    inputs: dict[str, str]
    figures: list[float | None]
    parts: np.ndarray | None = None
    validations: list[dict[str, str]] = dataclasses.field(default_factory=list)

    @property
    def configuration(self) -> str:
        """Return everything that made the run except its seed, as one comparable string."""
        others = {name: value for name, value in self.params.items() if name != SEED}
        return json.dumps([others, self.inputs], sort_keys=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds, or a single run."""

    runs: list[Run]

    @property
    def name(self) -> str:
        """Return the name of the run, or of the first and the last."""
        return self.runs[0].name if len(self.runs) == 1 else f"{self.runs[0].name}…{self.runs[-1].name}"

    @functools.cached_property
    def nats(self) -> np.ndarray:
        """Return the mean over the runs (D,)."""
        return np.mean([run.nats for run in self.runs], axis=0)

    @property
    def bits_per_byte(self) -> np.ndarray:
        """Return the bits per byte of each run over all documents (runs,)."""
        return np.array([bits_per_byte(run.nats, run.utf8_bytes) for run in self.runs])


class Comparison(NamedTuple):
    """B - A over all documents, over the `unseen_fraction` of their bytes that selected no model, and over seeds.

    `baseline` is the figure of A itself. `parts`: B - A over the documents of each part of a mixture, {} if there are
    none or if the runs have different ones.
    """

    a: Group
    b: Group
    baseline: Estimate
    documents: Estimate
    unseen: Estimate | None
    unseen_fraction: float
    seeds: Estimate
    parts: dict[str, Estimate]

    @property
    def bits(self) -> np.ndarray:
        """Return the difference of each document in bits (D,)."""
        return (self.b.nats - self.a.nats) / math.log(2)


def group_by_seed(runs: list[Run]) -> list[Group]:
    """Return groups in the order of their first runs.

    A repeated run of the same configuration and seed (on another machine, say) goes into another group.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        for copy in itertools.count():
            group = groups.setdefault((run.configuration, copy), [])
            if run.params[SEED] not in [other.params[SEED] for other in group]:
                group.append(run)
                break
    return [Group(members) for members in groups.values()]


def compare_groups(a: Group, b: Group, seed: int, confidence: float, resamples: int) -> Comparison:
    """Return the differences between two groups; documents are resampled with `seed`."""
    sizes = a.runs[0].utf8_bytes

    def interval(nats: np.ndarray, sizes: np.ndarray) -> Estimate:
        return ratio_interval(nats / math.log(2), sizes, np.random.default_rng(seed), confidence, resamples)

    rest, unseen, fraction = unseen_bytes(a.runs + b.runs), None, 0.0
    if rest is not None and rest.any():
        nats_a, nats_b = (np.mean([run.nats - run.selection_nats for run in g.runs], axis=0) for g in (a, b))
        unseen, fraction = interval(nats_b - nats_a, rest), float(rest.sum() / sizes.sum())
    seeds = welch(a.bits_per_byte, b.bits_per_byte, confidence)
    parts = {name: interval((b.nats - a.nats)[own], sizes[own]) for name, own in common_parts(a.runs + b.runs).items()}
    return Comparison(a, b, interval(a.nats, sizes), interval(b.nats - a.nats, sizes), unseen, fraction, seeds, parts)


def common_parts(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return part → mask (D,) of its documents, for the parts with text; {} unless all runs have the same parts."""
    parts, sizes = runs[0].parts, runs[0].utf8_bytes
    if parts is None or not all(run.parts is not None and np.array_equal(parts, run.parts) for run in runs):
        return {}
    return {name: parts == name for name in dict.fromkeys(parts[sizes > 0])}


def unseen_bytes(runs: list[Run]) -> np.ndarray | None:
    """Return the bytes of each document (D,) that selected none of the best models; None if that is not known.

    If the runs selected on different text (another tokenizer or seq_len), only documents without any such
    token are the same unseen text for all; the others count 0 bytes.
    """
    selected = [run.selection_bytes for run in runs if run.selection_bytes is not None]
    sizes = runs[0].utf8_bytes
    if len(selected) < len(runs) or not np.any(selected):
        return None
    if all(np.array_equal(selected[0], other) for other in selected):
        return sizes - selected[0]
    return np.where(np.any(selected, axis=0), 0, sizes)


def what_differs(a: Group, b: Group) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B) of parameters and inputs that differ.

    The seed is listed only between two single runs; a group has several.
    """
    hidden = {SEED} if len(a.runs) + len(b.runs) > 2 else set()
    of_a, of_b = ([run.params, {path: md5[:10] for path, md5 in run.inputs.items()}] for run in (a.runs[0], b.runs[0]))
    rows = [
        (name, x.get(name, ABSENT), y.get(name, ABSENT))
        for x, y in zip(of_a, of_b, strict=True)
        for name in sorted((x.keys() | y.keys()) - hidden)
    ]
    return [row for row in rows if row[1] != row[2]]


def most_changed(comparison: Comparison, number: int) -> np.ndarray:
    """Return the documents whose bits changed most, in either direction, first."""
    return np.argsort(-np.abs(comparison.bits), kind="stable")[:number]
