"""Runs, groups of runs that differ only in their seed, and the difference between two groups.

D is the number of validation documents, the same for every run, whatever its tokenizer.
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

    nats float64 and utf8_bytes int64 (D,); selection_nats, selection_bytes (D,): the same over the tokens that
    selected the best model, None if not recorded; params by dotted name; inputs: path → hash of the data and
    code that the stages read; figures: tokens seen, tokens seen by the best model, parameters, training seconds.
    """

    name: str
    nats: np.ndarray
    utf8_bytes: np.ndarray
    selection_nats: np.ndarray | None
    selection_bytes: np.ndarray | None
    params: dict[str, object]
    inputs: dict[str, str]
    figures: list[float]

    @property
    def configuration(self) -> str:
        """Everything that made the run except its seed, as one comparable string."""
        others = {name: value for name, value in self.params.items() if name != SEED}
        return json.dumps([others, self.inputs], sort_keys=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds, or a single run."""

    runs: list[Run]

    @property
    def name(self) -> str:
        """The name of the run, or of the first and the last."""
        return self.runs[0].name if len(self.runs) == 1 else f"{self.runs[0].name}…{self.runs[-1].name}"

    @functools.cached_property
    def nats(self) -> np.ndarray:
        """Mean over the runs (D,)."""
        return np.mean([run.nats for run in self.runs], axis=0)

    @property
    def bits_per_byte(self) -> np.ndarray:
        """Bits per byte of each run over all documents (runs,)."""
        return np.array([bits_per_byte(run.nats, run.utf8_bytes) for run in self.runs])


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """B - A over all documents, over the `unseen_fraction` of their bytes that selected no model, and over seeds."""

    a: Group
    b: Group
    documents: Difference
    unseen: Difference | None
    unseen_fraction: float
    seeds: Difference


def group_by_seed(runs: list[Run]) -> list[Group]:
    """Return groups in the order of their first runs.

    A repeated run of the same configuration and seed (on another machine, say) says nothing about seeds and
    goes into another group.
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

    def paired(nats_a: np.ndarray, nats_b: np.ndarray, sizes: np.ndarray) -> Difference:
        rng, keep = np.random.default_rng(seed), sizes > 0
        return paired_difference(nats_a[keep], nats_b[keep], sizes[keep], rng, confidence, resamples)

    rest, unseen = unseen_bytes(a.runs + b.runs), None
    if rest is not None and rest.any():
        nats_a, nats_b = (np.mean([run.nats - run.selection_nats for run in g.runs], axis=0) for g in (a, b))
        unseen = paired(nats_a, nats_b, rest)
    fraction = 0.0 if rest is None else float(rest.sum() / sizes.sum())
    seeds = welch(a.bits_per_byte, b.bits_per_byte, confidence)
    return Comparison(a, b, paired(a.nats, b.nats, sizes), unseen, fraction, seeds)


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
    left_out = {SEED} if len(a.runs) + len(b.runs) > 2 else set()
    (params_a, inputs_a), (params_b, inputs_b) = (
        (run.params, {path: md5[:10] for path, md5 in run.inputs.items()}) for run in (a.runs[0], b.runs[0])
    )
    rows = []
    for of_a, of_b in ((params_a, params_b), (inputs_a, inputs_b)):
        names = sorted((of_a.keys() | of_b.keys()) - left_out)
        rows += [(name, of_a.get(name, ABSENT), of_b.get(name, ABSENT)) for name in names]
    return [row for row in rows if row[1] != row[2]]


def most_changed(comparison: Comparison, number: int) -> np.ndarray:
    """Return the documents whose bits changed most, in either direction, first."""
    return np.argsort(-np.abs(comparison.b.nats - comparison.a.nats), kind="stable")[:number]
