"""Compare trained models by their losses on the same documents, whatever trained them.

    evidence compare losses.csv
    evidence compare base.csv wider.parquet --within 0.005 --json
    evidence noise losses.csv
    evidence judge HEAD~1 --run ./train.sh    # evidence judge --help

A table has a row for each run and document. docs/evidence.md describes its columns.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from evidence.answer import SAID, answer, basis_sentence, equivalence_sentence, power_line
from evidence.comparison import BETTER, Comparison, Equivalence, compare_groups, corrected, equivalence
from evidence.errors import EvidenceError, WrongInput
from evidence.json_output import print_json
from evidence.judge.cli import main as judge
from evidence.noise import NOISE, ScoredRun, describe, measure_noise, noise_record
from evidence.notes import notes_of
from evidence.record import COMPARE, record, with_equivalence
from evidence.runs import Group, Run, group_by_seed
from evidence.table import read_tables

NOT_BETTER = 1  # exit status with --require better
SUFFIXES = (".csv", ".parquet")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments; WrongInput if one is out of range."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("evidence", description=__doc__, formatter_class=as_it_is)
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="compare each group of runs with the first one")
    compare.add_argument("--baseline", metavar="GROUP", help="the group to compare with (the first)")
    compare.add_argument("--resamples", type=int, default=1999, help="resamples of the documents (1999)")
    compare.add_argument("--seed", type=int, default=1, help="seed of the resampling (1)")
    compare.add_argument("--require", choices=[BETTER], help="exit with 1 unless each group is better than the first")
    add_within(compare)
    noise = commands.add_parser("noise", help="show the spread over the seeds of each group")
    for command in (compare, noise):
        command.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="CSV or parquet files")
        command.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
        command.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")
    args = parser.parse_args(argv)
    if not 0.5 <= args.confidence <= 0.999:
        raise WrongInput(f"--confidence is {args.confidence}; it must be from 0.5 to 0.999, such as 0.95")
    return args


def add_within(parser: argparse.ArgumentParser) -> None:
    """Add --within, which asks whether two sides are equivalent."""
    parser.add_argument(
        "--within", type=float, metavar="MARGIN", help="also say whether the difference is smaller than this margin"
    )


def least_resamples(confidence: float, num_tests: int = 1) -> int:
    """Return how many resamples leave at least one in each tail outside the interval of each of several tests."""
    level = (1 - confidence) / num_tests
    return max(99, math.ceil(2 / level - 1 - 1e-6))


def compare_all(groups: list[Group], seed: int, confidence: float, resamples: int) -> list[Comparison]:
    """Return the comparison of each other group with the first; of a single group, of its runs with the first."""
    sides = groups if len(groups) > 1 else [Group([run]) for run in groups[0].runs]
    return [compare_groups(sides[0], side, seed, confidence, resamples) for side in sides[1:]]


def equivalences(
    found: list[Comparison], within: float | None, seed: int, confidence: float, resamples: int
) -> list[Equivalence]:
    """Return the equivalence of each comparison, [] without a margin."""
    if within is None:
        return []
    return [equivalence(each, within, seed, confidence, resamples, len(found)) for each in found]


def with_baseline_first(groups: list[Group], name: str | None) -> list[Group]:
    """Return the groups, the one with this name first."""
    if name is None:
        return groups
    named = [group for group in groups if group.name == name]
    if not named:
        raise WrongInput(f"--baseline is {name}; it must be one of {', '.join(group.name for group in groups)}")
    return named + [group for group in groups if group not in named]


def compare(args: argparse.Namespace, runs: list[Run]) -> int:
    """Print the answers, the baseline first; return NOT_BETTER if --require is not met."""
    groups = with_baseline_first(group_by_seed(runs), args.baseline)
    if len(runs) < 2:
        raise WrongInput(f"{runs[0].name} is the only run; a comparison needs two")
    num_others = max(len(groups) - 1, 1) if len(groups) > 1 else len(runs) - 1
    least = least_resamples(args.confidence, num_others if args.within else 1)
    if args.resamples < least:
        raise WrongInput(f"--resamples is {args.resamples}; it must be at least {least} for so many comparisons")
    if args.within is not None and not 0 < args.within < math.inf:
        raise WrongInput(f"--within is {args.within}; it must be above 0, in the unit of the difference")
    alone = compare_all(groups, args.seed, args.confidence, args.resamples)
    comparisons = corrected(alone)
    equivalent = equivalences(alone, args.within, args.seed, args.confidence, args.resamples)

    # Print.
    if args.json:
        content = record(groups, alone, comparisons, args.confidence)
        print_json(COMPARE, with_equivalence(content, equivalent) if equivalent else content)
    else:
        lines = [answer(each, len(comparisons), args.confidence) for each in comparisons]
        lines += [equivalence_sentence(*both) for both in zip(comparisons, equivalent, strict=False)]
        lines += map(basis_sentence, comparisons)
        lines += [power_line(each, args.confidence) for each in comparisons]
        lines += [note.text for each in comparisons for note in notes_of(each) if note.kind not in SAID]
        print("\n".join(line for line in dict.fromkeys(lines) if line))

    others = [each.b.name for each in comparisons if each.verdict(each.deciding, args.confidence) != BETTER]
    if args.require and others:
        print(f"--require {BETTER}: not better than {comparisons[0].a.name}: {', '.join(others)}", file=sys.stderr)
        return NOT_BETTER
    return 0


def noise(args: argparse.Namespace, runs: list[Run]) -> None:
    """Print the noise of each group."""
    measured = []
    for group in group_by_seed(runs):
        scored = [ScoredRun(run.name, run.seed, run.score) for run in group.runs]
        measured.append(measure_noise(group.name, scored, args.confidence, group.runs[0].measure))
    if args.json:
        content = {"confidence": args.confidence, "configurations": [noise_record(each) for each in measured]}
        print_json(NOISE, content)
    else:
        print("\n\n".join("\n".join(describe(each, args.confidence)) for each in measured))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status; that of an error comes with a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["judge"]:
            return judge(words[1:])
        args = parse(argv)
        runs = read_tables(args.tables)
        if args.command == "compare":
            return compare(args, runs)
        noise(args, runs)
    except EvidenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
