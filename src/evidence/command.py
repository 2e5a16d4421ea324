"""Compare trained models by their losses on the same documents, whatever trained them.

    evidence compare losses.csv
    evidence compare base.csv wider.parquet --within 0.005 --json
    evidence compare runs/ --metric eval_loss
    evidence judge HEAD~1 --run ./train.sh

PATH is a table (docs/evidence.md describes its columns), W&B's export of runs, or files or folders with
trainer_state.json of transformers or samples_*.jsonl of lm-eval. Runs of a single configuration give its noise: how far
seeds spread, and what more of them would show.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from evidence import read, text
from evidence.citation import citation
from evidence.difference import BETTER, Comparisons, Options, compare
from evidence.errors import EvidenceError
from evidence.forest import forest
from evidence.judge.cli import main as judge
from evidence.record import COMPARE, print_json, record
from evidence.runs import Run

NOT_BETTER = 1  # exit status with --require better
INTERRUPTED = 130  # by Ctrl-C
PIPE_CLOSED = 141  # by its reader, such as head
BUG = 70  # of this program: the status of Python, 1, would be an answer


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("evidence", description=__doc__, formatter_class=as_it_is)
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare", help="compare each group of runs with the first one")
    commands.add_parser("judge", help="try a change with several seeds (evidence judge --help)")  # it parses its own
    comparing.add_argument("paths", nargs="+", metavar="PATH", help="files or folders of one kind")
    comparing.add_argument("--metric", default="", help="which metric, if the files have several")
    comparing.add_argument("--filter", default="", help="which filter of lm-eval, if there are several")
    comparing.add_argument(
        "--better", choices=["higher", "lower"], default="", help="if that is not usual for the metric"
    )
    add_options(comparing)
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
    parser.add_argument("--cite", action="store_true", help="also print a table for a paper")
    parser.add_argument("--latex", action="store_true", help="the same in LaTeX, with booktabs")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="write a picture of the intervals (matplotlib)")


def options_of(args: argparse.Namespace) -> Options:
    """Return the arguments of `add_options`."""
    return Options(args.baseline, args.within, args.confidence)


def compare_tables(args: argparse.Namespace, runs: list[Run]) -> int:
    """Print the answers, the baseline first; return the status of `show`."""
    found = compare(runs, options_of(args))
    return show(args, found, record(found), text(found))


def show(
    args: argparse.Namespace, found: Comparisons, document: dict, said: str, source: str = "", where: str = ""
) -> int:
    """Print what is asked for, and return NOT_BETTER, after a line on standard error, if --require is not met."""
    if args.plot:
        forest(found, args.plot)
    if args.json:
        print_json(COMPARE, document)
    else:
        print(said)
        if args.cite or args.latex:
            print("", *citation(found, args.latex, source, where), sep="\n")
    others = [f"{each.b.name} ({each.verdict})" for each in found.differences if each.verdict != BETTER]
    if not args.require or (found.differences and not others):
        return 0
    missing = ", ".join(others) or "there is nothing else"
    print(f"--require {args.require}: not better than {found.groups[0].name}: {missing}", file=sys.stderr)
    return NOT_BETTER


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status; that of an error comes with a sentence."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == ["judge"]:
            return judge(words[1:])
        args = parse(words)
        runs = read(args.paths, args.metric, args.filter, args.better)
        status = compare_tables(args, runs)
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
