"""The comparisons of one call: each other group of runs with the baseline, corrected for their number."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from evidence.comparison import BETTER, Comparison, Equivalence, compare_groups, corrected, equivalence
from evidence.errors import WrongInput
from evidence.runs import Group, Run, make_groups


class Options(NamedTuple):
    """How to compare."""

    baseline: str | None = None  # the name of a group, None: the first
    within: float | None = None  # the margin of equivalence, None: not asked
    seed: int = 1  # of the resampling
    confidence: float = 0.95
    resamples: int = 1999


class Comparisons(NamedTuple):
    """Groups of runs, and the comparison of each other one with the baseline."""

    groups: list[Group]
    alone: list[Comparison]  # p is that of each comparison alone
    corrected: list[Comparison]  # the same, with p after Holm's correction for their number
    equivalences: list[Equivalence]  # of each comparison, if a margin was given
    confidence: float

    def not_better(self) -> list[str]:
        """Return the names of the groups that are not better than the baseline, with their verdicts."""
        verdicts = {each.b.name: each.verdict(each.deciding, self.confidence) for each in self.corrected}
        return [f"{name} ({verdict})" for name, verdict in verdicts.items() if verdict != BETTER]


def compare_runs(runs: Sequence[Run], options: Options) -> Comparisons:
    """Compare each other group with the baseline; if there is a single group, each of its runs with the first one.

    Raise WrongInput if there is nothing to compare, or if an option is out of range.
    """
    if len(runs) < 2:
        raise WrongInput(f"{runs[0].name} is the only run; a comparison needs two")
    groups = make_groups(runs)
    if len(groups) > 1:
        groups = sides = with_baseline_first(groups, options.baseline)
    else:
        sides = with_baseline_first([Group([run]) for run in groups[0].runs], options.baseline)
    baseline, *others = sides
    reject_wrong_options(options, len(others))

    resampling = options.seed, options.confidence, options.resamples
    alone = [compare_groups(baseline, other, *resampling) for other in others]
    equivalences = []
    if options.within is not None:
        equivalences = [equivalence(each, options.within, *resampling, len(others)) for each in alone]
    return Comparisons(groups, alone, corrected(alone), equivalences, options.confidence)


def with_baseline_first(groups: list[Group], name: str | None) -> list[Group]:
    """Return the groups, the one with this name first."""
    if name is None:
        return groups
    named = [group for group in groups if group.name == name]
    if not named:
        raise WrongInput(f"--baseline is {name}; it must be one of {', '.join(group.name for group in groups)}")
    return named + [group for group in groups if group not in named]


def reject_wrong_options(options: Options, num_comparisons: int = 1) -> None:
    """Raise WrongInput if an option is out of range. More comparisons need more resamples."""
    reject_wrong_confidence(options.confidence)
    if options.within is not None and not 0 < options.within < math.inf:
        raise WrongInput(f"--within is {options.within}; it must be above 0, in the unit of the difference")
    if options.seed < 0:
        raise WrongInput(f"--seed is {options.seed}; it must be at least 0")

    # Each tail outside each interval must hold at least one resample.
    num_tests = 1 if options.within is None else num_comparisons
    level = (1 - options.confidence) / num_tests
    least = max(99, math.ceil(2 / level - 1 - 1e-6))
    if options.resamples < least:
        raise WrongInput(f"--resamples is {options.resamples}; it must be at least {least} for this confidence")


def reject_wrong_confidence(confidence: float) -> None:
    if not 0.5 <= confidence <= 0.999:
        raise WrongInput(f"--confidence is {confidence}; it must be from 0.5 to 0.999, such as 0.95")
