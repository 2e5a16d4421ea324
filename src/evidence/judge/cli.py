r"""Judge a change: is the workspace better than BASE, after all that was tried before?

    evidence judge HEAD~1 --run ./train.sh
    evidence judge HEAD~1 --run "python train.py" --metric 'val_bpb:\s*(\S+)'
    evidence judge best --run "python train.py" --fixed validate.py --json

It runs both sides with the same seeds, each in a worktree of its commit, until it is decided: 7 to 26 runs, of which
those of the base serve all changes to it. The command finds the seed in the variable SEED and writes a CSV file to the
path in LOSSES: document, nats, utf8_bytes. With --metric it prints a number instead. What ran before is kept. Exit
status: 0 keep, 1 reject, 3 undecided, 6 the candidate crashed; another one is no judgement. Each judgement is a row of
judgements.csv, and the level at which the next one keeps a change follows from the rows before.
"""

import argparse
import shlex
from collections.abc import Callable

from evidence.errors import CandidateCrashed, EvidenceError
from evidence.judge import judge
from evidence.judge.decision import MOST_SEEDS
from evidence.judge.judgements import Judgement
from evidence.record import print_json

SCHEMA = "reprolm.judge/4"
STATUS = {"keep": 0, "reject": 1, "undecided": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every judge has."""
    parser.add_argument("base", metavar="BASE", help="the Git revision to be better than, such as HEAD~1")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help=f"most seeds of the candidate ({MOST_SEEDS})")
    parser.add_argument(
        "--least-gain",
        type=float,
        default=0.0,
        metavar="GAIN",
        help="keep only a larger gain, in bits per byte (0)",
    )
    parser.add_argument("--json", action="store_true", help="print the judgement as JSON")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments of `evidence judge`: those of the function `judge`, and --json."""
    parser = argparse.ArgumentParser(
        "evidence judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument(
        "--run", required=True, type=shlex.split, metavar="COMMAND", help="program and arguments, run without a shell"
    )
    parser.add_argument("--metric", metavar="PATTERN", help="number that the command prints: the last match counts")
    parser.add_argument("--higher-is-better", action="store_true", help="negate the metric")
    parser.add_argument("--first-seed", type=int, default=1, metavar="SEED", help="seeds count from here (1)")
    parser.add_argument(
        "--fixed", action="append", default=[], metavar="PATH", help="file or folder that a candidate may not change"
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        action="append",
        default=[],
        metavar="PATH",
        help="file or folder outside Git that decides a run",
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Judge the workspace against the base; return the exit status of the answer."""
    arguments = vars(parse(argv))
    as_json = arguments.pop("json")
    return say(lambda: judge(**arguments), as_json)


def say(judge: Callable[[], Judgement], as_json: bool) -> int:
    """Judge, print the judgement, and return the exit status of its answer. With --json an error is a document, too."""
    try:
        judged = judge()
    except EvidenceError as error:
        if as_json:
            answer = "crashed" if isinstance(error, CandidateCrashed) else "none"
            log = getattr(error, "__notes__", [])
            print_json(SCHEMA, {"answer": answer, "exit_status": error.exit_code, "reason": str(error), "log": log})
        raise
    if as_json:
        print_json(SCHEMA, judged.as_dict() | {"earns": judged.earns, "reason": judged.decision.reason})
    else:
        print(text_of(judged))
    return STATUS[judged.decision.answer]


def text_of(judged: Judgement) -> str:
    """Return a judgement for a person."""
    pair = judged.pair
    figures = judged.figures
    decision = judged.decision
    measured = decision.measured
    direction = "better" if measured.difference < 0 else "worse"
    unit = "" if pair.metric else " bits per byte"
    lines = [
        f"{decision.answer} ({decision.reason})",
        f"  {pair.candidate[:10]} ({pair.change}) is {abs(measured.difference):.4f}{unit} {direction} than "
        f"{pair.base[:10]}, by {measured.method}: standard error {measured.standard_error:.4f}",
        f"  {figures.candidate_mean:.4f} over {figures.seeds} seeds, {figures.base_mean:.4f} over "
        f"{figures.base_seeds} of the base",
        f"  p {decision.p:.2g}, level of judgement {judged.number}: {decision.level:.2g}",
    ]
    if figures.documents_low is not None:
        lines.append(f"  over documents: 95 % interval {figures.documents_low:+.4f} to {figures.documents_high:+.4f}")
    fresh = judged.fresh
    if fresh:
        lines.append(f"  seed {fresh.seed}, which nobody had run: {fresh.candidate:.4f}, {fresh.base:.4f} of the base")
    if judged.is_kept and not judged.earns:
        lines.append(f"  it raises no later level: {pair.base[:10]} did so before, or is no base of this night")
    return "\n".join(lines)
