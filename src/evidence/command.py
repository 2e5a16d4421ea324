"""Compare trained models by their losses on the same documents, whatever trained them.

    evidence compare losses.csv
    evidence compare base.csv wider.parquet --within 0.005 --json
    evidence judge HEAD~1 --run ./train.sh

A table has a row for each run and document; docs/evidence.md describes its columns. Runs of a single configuration
give its noise: how far seeds spread, and what more of them would show.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from evidence.answer import answers, citation, distinct, explanations
from evidence.difference import BETTER, Comparisons, Options, compare
from evidence.errors import EvidenceError
from evidence.judge.cli import main as judge
from evidence.record import COMPARE, print_json, record
from evidence.runs import Run
from evidence.table import read_tables

NOT_BETTER = 1  # exit status with --require better
INTERRUPTED = 130  # by Ctrl-C
PIPE_CLOSED = 141  # by its reader, such as head
BUG = 70  # of this program: the status of Python, 1, would be an answer
SUFFIXES = (".csv", ".tsv", ".parquet")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("evidence", description=__doc__, formatter_class=as_it_is)
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="compare each group of runs with the first one")
    commands.add_parser("judge", help="try a change with several seeds (evidence judge --help)")  # it parses its own
    add_options(comparing)
    comparing.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help="CSV, TSV or parquet files")
    return parser.parse_args(argv)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a comparison can be told, whatever it compares."""
    parser.add_argument("--baseline", metavar="GROUP", help="the run or group to compare with (the first)")
    parser.add_argument(
        "--within", type=float, metavar="MARGIN", help="also say whether the difference is smaller than this margin"
    )
    parser.add_argument(
        "--require", choices=[BETTER], help="exit with 1 unless each run or group is better than the baseline"
    )
    parser.add_argument("--confidence", type=float, default=0.95, help="confidence of the intervals (0.95)")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")
    parser.add_argument("--cite", action="store_true", help="also print a sentence and a table for a paper")


def options_of(args: argparse.Namespace) -> Options:
    """Return the arguments of `add_options`."""
    return Options(args.baseline, args.within, args.confidence)


def compare_tables(args: argparse.Namespace, runs: list[Run]) -> int:
    """Print the answers, the baseline first; return the status of `status_of`."""
    found = compare(runs, options_of(args))
    if args.json:
        print_json(COMPARE, record(found))
        return status_of(found, args.require)
    lines = distinct([*answers(found), *explanations(found)])
    if args.cite:
        lines += ["", *citation(found, [""] * len(found.differences))]
    print("\n".join(lines))
    return status_of(found, args.require)


def status_of(found: Comparisons, require: str | None) -> int:
    """Return NOT_BETTER, after a line on standard error, if --require is given and not met; otherwise 0."""
    others = found.not_better()
    if not require or (found.differences and not others):
        return 0
    said = ", ".join(others) or "there is nothing else"
    print(f"--require {require}: not better than {found.groups[0].name}: {said}", file=sys.stderr)
    return NOT_BETTER


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status; that of an error comes with a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["judge"]:
            return judge(words[1:])
        args = parse(argv)
        status = compare_tables(args, read_tables(args.tables))
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
