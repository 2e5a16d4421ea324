"""Runs, groups of runs that differ only in their seed, and the difference between two groups.

D is the number of validation documents, the same for every run, whatever its tokenizer.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from evidence.intervals import Estimate, ratio_interval
from evidence.statistics import LEAST_SEEDS, bits_per_byte, holm, welch

SEED = "train.seed"
ABSENT = "(none)"
CODE = ("src/", "requirements.txt")  # inputs that two runs with the same bits may differ in

# What decides a verdict, and the verdicts.
SEEDS = "seeds"
DOCUMENTS = "documents"
BETTER = "better"
WORSE = "worse"
NOT_SHOWN = "not shown"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One trained and evaluated model."""

    name: str
    nats: np.ndarray  # (D,) float64
    utf8_bytes: np.ndarray  # (D,) int64
    sources: np.ndarray | None  # (D,) source of the mixture that holds each document, None for a plain source
    params: dict[str, object]  # by dotted name
    inputs: dict[str, str]  # path → hash of the data and code that the stages read
    tokens_seen: int
    best_tokens_seen: int  # by the best model
    num_parameters: int
    train_seconds: float | None  # None: not trained on this machine
    validations: list[dict[str, str]]  # rows of plots/validation.csv as text by column
    is_lossy: bool = False  # whether the tokenizer changes the validation text
    num_earlier_looks: int = 0  # at the test split, for other weights, when this run was recorded
    code: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)  # folder → file → md5, if known

    @property
    def configuration(self) -> str:
        """Return everything that made the run except its seed, as one comparable string."""
        return configuration(self.params, self.inputs)

    @property
    def data(self) -> dict[str, str]:
        """Return the inputs without code."""
        return {path: md5 for path, md5 in self.inputs.items() if not path.startswith(CODE)}


def configuration(params: Mapping[str, object], inputs: Mapping[str, str]) -> str:
    """Return parameters except the seed, and inputs, as one comparable string."""
    others = {name: value for name, value in params.items() if name != SEED}
    return json.dumps([others, dict(inputs)], sort_keys=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration with different seeds, or a single run."""

    runs: list[Run]

    @property
    def name(self) -> str:
        return self.runs[0].name if len(self.runs) == 1 else f"{self.runs[0].name}…{self.runs[-1].name}"

    @functools.cached_property
    def nats(self) -> np.ndarray:  # (D,), the mean over the runs
        return np.mean([run.nats for run in self.runs], axis=0)

    @property
    def bits_per_byte(self) -> np.ndarray:  # (runs,), over all documents
        return np.array([bits_per_byte(run.nats, run.utf8_bytes) for run in self.runs])


class Comparison(NamedTuple):
    """B - A over the documents, those of each source of a mixture, and over seeds; `baseline` is A itself."""

    a: Group
    b: Group
    baseline: Estimate
    documents: Estimate
    seeds: Estimate
    sources: dict[str, Estimate]

    @property
    def basis(self) -> str:
        """Return which interval decides: SEEDS if each side has at least two runs, otherwise DOCUMENTS.

        Over seeds, two configurations differ. Over documents, only these two trained models do.
        """
        fewer = min(len(self.a.runs), len(self.b.runs))
        return SEEDS if fewer >= 2 else DOCUMENTS

    @property
    def deciding(self) -> Estimate:
        """Return the difference over what `basis` names."""
        return self.seeds if self.basis == SEEDS else self.documents

    @property
    def bits(self) -> np.ndarray:  # (D,), the difference of each document
        return (self.b.nats - self.a.nats) / math.log(2)

    @property
    def sizes(self) -> np.ndarray:  # (D,), bytes
        return self.a.runs[0].utf8_bytes

    def most_changed(self, count: int) -> np.ndarray:
        """Return the positions of the documents whose bits changed most, in either direction, first."""
        return np.argsort(-np.abs(self.bits), kind="stable")[:count]


def group_by_seed(runs: list[Run]) -> list[Group]:
    """Return groups in the order of their first runs.

    A repeated run of the same configuration and seed (on another machine, say) goes into another group.
    """
    groups: list[Group] = []
    for run in runs:
        for group in groups:
            has_seed = run.params[SEED] in [other.params[SEED] for other in group.runs]
            if run.configuration == group.runs[0].configuration and not has_seed:
                group.runs.append(run)
                break
        else:
            groups.append(Group([run]))
    return groups


def compare_groups(a: Group, b: Group, seed: int, confidence: float, resamples: int) -> Comparison:
    """Return the differences between two groups; documents are resampled with `seed`."""
    sizes = a.runs[0].utf8_bytes

    def interval(nats: np.ndarray, own: np.ndarray) -> Estimate:
        rng = np.random.default_rng(seed)
        return ratio_interval(nats[own] / math.log(2), sizes[own], rng, confidence, resamples)

    change = b.nats - a.nats
    every = np.full(len(sizes), True)
    return Comparison(
        a,
        b,
        baseline=interval(a.nats, every),
        documents=interval(change, every),
        seeds=welch(a.bits_per_byte, b.bits_per_byte, confidence),
        sources={name: interval(change, own) for name, own in common_sources(a.runs + b.runs).items()},
    )


def verdict(found: Estimate, confidence: float) -> str:
    """Return BETTER, WORSE or NOT_SHOWN for B, of the estimate of B - A; its p is corrected for several comparisons."""
    is_shown = found.p_value is not None and found.p_value <= 1 - confidence + 1e-9
    if not is_shown:
        return NOT_SHOWN
    return BETTER if found.value < 0 else WORSE


def compare_with_first(groups: list[Group], seed: int, confidence: float, resamples: int) -> list[Comparison]:
    """Return `compare_groups` of each other group with the first one, with p after Holm's correction."""
    return corrected([compare_groups(groups[0], other, seed, confidence, resamples) for other in groups[1:]])


def corrected(found: list[Comparison]) -> list[Comparison]:
    """Return comparisons with one baseline, with p after Holm's correction.

    The comparisons over documents are one family of tests, those over seeds another, those of all sources a third.
    """
    documents = holm([each.documents for each in found])
    seeds = holm([each.seeds for each in found])
    sources = iter(holm([estimate for each in found for estimate in each.sources.values()]))
    changed = []
    for i, each in enumerate(found):
        of_sources = {name: next(sources) for name in each.sources}
        changed.append(each._replace(documents=documents[i], seeds=seeds[i], sources=of_sources))
    return changed


def pooled_deviation(groups: list[Group]) -> float | None:
    """Return the standard deviation over seeds, pooled over the groups with LEAST_SEEDS runs or more.

    None if no group has as many, or if all their values are equal.
    """
    squares = 0.0
    degrees_of_freedom = 0
    for group in groups:
        if len(group.runs) >= LEAST_SEEDS:
            df = len(group.runs) - 1
            squares += df * float(np.var(group.bits_per_byte, ddof=1))
            degrees_of_freedom += df
    return math.sqrt(squares / degrees_of_freedom) if squares else None


def common_sources(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return source → mask (D,) of its documents, for those with text; {} unless all runs have the same sources."""
    sources = runs[0].sources
    if sources is None:
        return {}
    for run in runs:
        if run.sources is None or not np.array_equal(sources, run.sources):
            return {}
    has_text = runs[0].utf8_bytes > 0
    return {name: sources == name for name in dict.fromkeys(sources[has_text])}


def what_differs(a: Group, b: Group) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B) of parameters and inputs that differ."""
    rows = different_parameters(a, b)
    for path, files, md5, other_md5 in different_inputs(a, b):
        name = f"{path}: {', '.join(files)}" if files else path
        rows.append((name, md5[:10], other_md5[:10]))
    return rows


def different_parameters(a: Group, b: Group) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B); the seed only between two single runs, as a group has several."""
    rows = different_entries(a.runs[0].params, b.runs[0].params)
    if len(a.runs) + len(b.runs) > 2:
        rows = [row for row in rows if row[0] != SEED]
    return rows


def different_inputs(a: Group, b: Group) -> list[tuple[str, list[str], str, str]]:
    """Return rows (path, files of a folder of code that differ, md5 of A, md5 of B) of code and data."""
    first = a.runs[0]
    other = b.runs[0]
    rows = []
    for path, md5, other_md5 in different_entries(first.inputs, other.inputs):
        files = changed_files(first.code.get(path, {}), other.code.get(path, {}))
        rows.append((path, files, str(md5), str(other_md5)))
    return rows


def changed_files(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the names of the files that two versions of a folder do not share; [] if one of them is not known."""
    if not a or not b:
        return []
    return [name for name, *_ in different_entries(a, b)]


def different_entries(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return rows (name, value in A, value in B) of the entries that differ, by name."""
    rows = [(name, a.get(name, ABSENT), b.get(name, ABSENT)) for name in sorted(a.keys() | b.keys())]
    return [row for row in rows if row[1] != row[2]]


def same_until(a: Run, b: Run) -> str | None:
    """Say until which validation two runs of equal parameters and data had the same bits, and what differs then.

    Return None for other runs, and without recorded digests of the checkpoints.
    """
    digest = "checkpoint_digest"
    have_digests = all(run.validations and all(row.get(digest) for row in run.validations) for run in (a, b))
    if not have_digests or a.params != b.params or a.data != b.data:
        return None
    until = "different from step 0 on"
    for x, y in zip(a.validations, b.validations, strict=False):
        if x != y:
            losses = f"validation losses {x['val_loss']} and {y['val_loss']}"
            if x[digest] == y[digest]:
                cause = "the machine" if a.inputs == b.inputs else "the code"
                return f"equal weights at step {x['step']} (digest {x[digest]}), other {losses}: {cause} differs"
            return f"{until}; step {x['step']} has the {losses}, digests {x[digest]} and {y[digest]}"
        until = f"identical until step {x['step']}"
    if len(a.validations) == len(b.validations):
        return "identical"
    shorter = min(a, b, key=lambda run: len(run.validations))
    return f"{until}, the last validation of `{shorter.name}`"
