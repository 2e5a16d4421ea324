"""Compare trained models by their losses on the same documents, whatever trained them.

    evidence compare losses.csv
    evidence compare base.csv wider.parquet --within 0.005 --json
    evidence noise losses.csv
    evidence judge HEAD~1 --run ./train.sh

A table has a row for each run and document. docs/evidence.md describes its columns.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from evidence.answer import SAID, answers, basis_sentence, notes_of, power_line
from evidence.difference import BETTER, Comparisons, Options, compare_runs, reject_wrong_confidence
from evidence.errors import EvidenceError, WrongInput
from evidence.judge.cli import main as judge
from evidence.noise import NOISE, ScoredRun, describe, measure_noise, noise_record
from evidence.record import COMPARE, print_json, record
from evidence.runs import Run, make_groups
from evidence.table import read_tables

NOT_BETTER = 1  # exit status with --require better
INTERRUPTED = 130  # by Ctrl-C
PIPE_CLOSED = 141  # by its reader, such as head
BUG = 70  # of this program: the status of Python, 1, would be an answer
HOW_TO_GROUP = "give runs of one configuration one name and other seeds, or a column group"
SUFFIXES = (".csv", ".tsv", ".parquet")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("evidence", description=__doc__, formatter_class=as_it_is)
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="compare each group of runs with the first one")
    noise = commands.add_parser("noise", help="show the spread over the seeds of each group")
    commands.add_parser("judge", help="try a change with several seeds (evidence judge --help)")  # it parses its own
    add_options(compare)
    add_common(noise)
    for command in (compare, noise):
        command.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="CSV, TSV or parquet files")
    return parser.parse_args(argv)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what `compare` and `noise` share."""
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a comparison can be told, whatever it compares."""
    parser.add_argument("--baseline", metavar="GROUP", help="the run or group to compare with (the first)")
    parser.add_argument(
        "--within", type=float, metavar="MARGIN", help="also say whether the difference is smaller than this margin"
    )
    parser.add_argument(
        "--require", choices=[BETTER], help="exit with 1 unless each run or group is better than the baseline"
    )
    add_common(parser)
    parser.add_argument("--resamples", type=int, default=1999, help="resamples of the documents (1999)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the resampling (1)")


def options_of(args: argparse.Namespace) -> Options:
    """Return the arguments of `add_options`."""
    return Options(args.baseline, args.within, args.seed, args.confidence, args.resamples)


def compare(args: argparse.Namespace, runs: list[Run]) -> int:
    """Print the answers, the baseline first; return the status of `status_of`."""
    found = compare_runs(runs, options_of(args))
    reject_undecidable(found)
    if args.json:
        print_json(COMPARE, record(found))
    else:
        comparisons = found.corrected
        lines = answers(found)
        lines += map(basis_sentence, comparisons)
        for each in comparisons:
            shown = power_line(each, found.confidence)
            lines.append(f"`{each.b.name}`: {shown}" if shown and comparisons[1:] else shown)
        lines += [note.text for each in comparisons for note in notes_of(each) if note.kind not in SAID]
        print("\n".join(line for line in dict.fromkeys(lines) if line))
    return status_of(found, args.require)


def reject_undecidable(found: Comparisons) -> None:
    """Raise WrongInput if each group has one run, and each run one document: no interval follows from them."""
    groups = found.groups
    has_one_document = len(found.alone[0].sizes) == 1
    has_single_runs = all(len(group.runs) == 1 for group in groups)
    if has_one_document and has_single_runs:
        problem = f"nothing decides between {len(groups)} configurations of one run and one document"
        raise WrongInput(f"{problem}; {HOW_TO_GROUP}")


def status_of(found: Comparisons, require: str | None) -> int:
    """Return NOT_BETTER, after a line on standard error, if --require is given and not met; otherwise 0."""
    others = found.not_better()
    if not require or not others:
        return 0
    print(f"--require {require}: not better than {found.corrected[0].a.name}: {', '.join(others)}", file=sys.stderr)
    return NOT_BETTER


def noise(args: argparse.Namespace, runs: list[Run]) -> None:
    """Print the noise of each group."""
    reject_wrong_confidence(args.confidence)
    groups = make_groups(runs)
    scored = [[ScoredRun(run.name, run.seed, run.score) for run in group.runs] for group in groups]
    measured = []
    for i, group in enumerate(groups):
        others = scored[:i] + scored[i + 1 :]
        measured.append(measure_noise(group.name, scored[i], others, args.confidence, group.runs[0].measure))
    if args.json:
        content = {"confidence": args.confidence, "configurations": [noise_record(each) for each in measured]}
        print_json(NOISE, content)
    else:
        print("\n\n".join("\n".join(describe(each, args.confidence)) for each in measured))
        if len(groups) > 1 and len(groups) == len(runs):
            print(f"\nNo configuration has two runs: {HOW_TO_GROUP}.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status; that of an error comes with a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["judge"]:
            return judge(words[1:])
        args = parse(argv)
        runs = read_tables(args.tables)
        status = 0
        if args.command == "compare":
            status = compare(args, runs)
        else:
            noise(args, runs)
        sys.stdout.flush()
        return status
    except EvidenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        kept = "; judge keeps the runs that have ended" if words[:1] == ["judge"] else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # What is left goes nowhere, so that Python does not complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception:
        traceback.print_exc()
        return BUG
