"""Judge a change: is the workspace better than BASE, after all that was tried before?

    evidence judge HEAD~1 --run ./train.sh
    evidence judge best --run "python train.py" --fixed validate.py --json

It runs both sides with the same seeds, each in a worktree of its commit, until it is decided: 7 to 26 runs, of which
those of the base serve all changes to it. The command finds the seed in the variable SEED and writes a CSV file to the
path in LOSSES: document, nats, utf8_bytes. What ran before is kept. Exit status: 0 keep, 1 reject, 3 undecided, 6 the
candidate crashed; another one is no judgement. Each judgement is a row of judgements.csv, and the level at which the
next one keeps a change follows from the rows before.
"""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path

from evidence.answer import interval
from evidence.errors import CandidateCrashed, EvidenceError, WrongInput
from evidence.intervals import Estimate
from evidence.judge.commits import commit_of_workspace, read_commit, reject_absent, reject_changed
from evidence.judge.decision import LOOKS, MOST_SEEDS
from evidence.judge.judgements import JUDGEMENTS, Judgement
from evidence.judge.kept import Runner
from evidence.judge.night import judge_candidate
from evidence.record import print_json

SCHEMA = "reprolm.judge/3"
STATUS = {"keep": 0, "reject": 1, "undecided": 3}
LEFT_OUT = (str(JUDGEMENTS),)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every judge has."""
    parser.add_argument("base", metavar="BASE", help="the Git revision to be better than, such as HEAD~1")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help=f"most seeds of the candidate ({MOST_SEEDS})")
    parser.add_argument(
        "--least-gain", type=float, default=0.0, metavar="BITS", help="keep only a larger gain in bits per byte (0)"
    )
    parser.add_argument("--json", action="store_true", help="print the judgement as JSON")


def reject_wrong_arguments(args: argparse.Namespace) -> None:
    """Raise WrongInput for numbers that cannot be."""
    if not LOOKS[0] <= args.seeds <= MOST_SEEDS:
        raise WrongInput(f"--seeds is {args.seeds}; it must be from {LOOKS[0]} to {MOST_SEEDS}")
    if args.least_gain < 0:
        raise WrongInput(f"--least-gain is {args.least_gain:g}; it must be at least 0")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments of `evidence judge`."""
    parser = argparse.ArgumentParser(
        "evidence judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--run", required=True, type=shlex.split, metavar="COMMAND", help="program and arguments, run without a shell"
    )
    parser.add_argument("--first-seed", type=int, default=1, metavar="SEED", help="seeds count from here (1)")
    parser.add_argument(
        "--fixed", action="append", default=[], metavar="PATH", help="file or folder that a candidate may not change"
    )
    parser.add_argument(
        "--input", action="append", default=[], type=Path, metavar="PATH", help="file outside Git that decides a run"
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Judge the workspace against the base; return the exit status of the answer."""
    return say(judge, parse(argv))


def say(judge: Callable[[argparse.Namespace], Judgement], args: argparse.Namespace) -> int:
    """Judge, print the judgement, and return the exit status of its answer. With --json an error is a document, too."""
    try:
        judged = judge(args)
    except EvidenceError as error:
        if args.json:
            answer = "crashed" if isinstance(error, CandidateCrashed) else "none"
            log = getattr(error, "__notes__", [])
            failure = {"answer": answer, "exit_status": error.exit_code, "reason": str(error), "log": log}
            print_json(SCHEMA, failure)
        raise
    if args.json:
        print_json(SCHEMA, judged.as_dict() | {"earns": judged.earns, "reason": judged.decision.reason})
    else:
        print(text_of(judged))
    return STATUS[judged.decision.answer]


def judge(args: argparse.Namespace) -> Judgement:
    """Judge the workspace against the base; record the judgement."""
    reject_wrong_arguments(args)
    if not args.run:
        raise WrongInput("--run is empty; it must be a program and its arguments")
    for path in args.input:
        if not path.is_file():
            raise WrongInput(f"--input is {path}; it must be a file")
    base = read_commit(args.base, LEFT_OUT)
    candidate = commit_of_workspace(LEFT_OUT)
    reject_absent(base, args.fixed)
    reject_changed(base, candidate, may_change=(), fixed=args.fixed)
    runner = Runner(tuple(args.run), tuple(args.input))
    return judge_candidate(runner, base, candidate, args.seeds, args.first_seed, args.least_gain)


def text_of(judged: Judgement) -> str:
    """Return a judgement for a person."""
    pair = judged.pair
    figures = judged.figures
    decision = judged.decision
    measured = decision.measured
    documents = Estimate(figures.pairs_mean, low=figures.documents_low, high=figures.documents_high)
    direction = "better" if measured.difference < 0 else "worse"
    lines = [
        f"{decision.answer} ({decision.reason})",
        f"  {pair.candidate[:10]} ({pair.change}) is {abs(measured.difference):.4f} bits per byte {direction} than "
        f"{pair.base[:10]}, by {measured.method}: standard error {measured.standard_error:.4f}",
        f"  {figures.candidate_mean:.4f} over {figures.seeds} seeds, {figures.base_mean:.4f} over "
        f"{figures.base_seeds} of the base",
        f"  over documents: 95 % interval {interval(documents)}",
        f"  p {decision.p:.2g}, level of judgement {judged.number}: {decision.level:.2g}",
    ]
    if judged.fresh:
        fresh = judged.fresh
        lines.append(f"  seed {fresh.seed}, which nobody had run: {fresh.candidate:.4f}, {fresh.base:.4f} of the base")
    if judged.is_kept and not judged.earns:
        lines.append(f"  it raises no later level: {pair.base[:10]} did so before, or is no base of this night")
    return "\n".join(lines)
