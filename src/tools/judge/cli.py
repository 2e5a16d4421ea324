"""Judge a change: is the workspace better than BASE, after all that was tried before?

    python src judge HEAD~1
    python src judge best --seeds 6
    python src judge best --go-on --json

It runs both with the same seeds (what ran before is free), compares them by seeds and by documents, and answers keep,
reject or undecided. Exit status: 0 keep, 1 reject, 3 undecided: run it again with more seeds, or with --go-on. Each
judgement is a row of judgements.csv, and the level at which the next one keeps a change follows from the rows before.
"""

import argparse
import sys

from evidence.comparison import Comparison, compare_groups
from evidence.differences import welch
from evidence.json_output import print_json
from evidence.runs import Group
from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import output_lock, sha256_json
from tools.common.arguments import count, tool_parser
from tools.common.paths import VALIDATION_SIDECAR
from tools.common.runs import Revision, Run, read_runs
from tools.judge.commits import Commit, commit_of_workspace, read_commit, reject_incomparable
from tools.judge.decision import DIGITS, Figures
from tools.judge.judgements import (
    JUDGEMENTS,
    Judgement,
    Pair,
    judge,
    read_judgements,
    reject_difference,
    row_of,
    write_judgements,
)
from tools.judge.picture import PICTURE, save_picture
from tools.judge.runs import make_run, read_experiment, reference_of

SCHEMA = "reprolm.judge/1"
STATUS = {"keep": 0, "reject": 1, "undecided": 3}
CONFIDENCE = 0.95
RESAMPLES = 1999
RESAMPLING_SEED = 1


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if there are too few seeds."""
    parser = tool_parser("judge", __doc__)
    parser.add_argument("base", metavar="BASE", help="the Git revision to be better than, such as HEAD~1")
    parser.add_argument("--seeds", type=count, default=3, help="seeds of each side (3)")
    parser.add_argument("--go-on", action="store_true", help="run the further seeds until it is decided")
    parser.add_argument("--any-budget", action="store_true", help="let the sides differ in train.max_tokens")
    parser.add_argument("--json", action="store_true", help="print the judgement as JSON")
    args = parser.parse_args(argv)
    if args.seeds < 2:
        raise ParamsError(f"--seeds is {args.seeds}; it must be at least 2, because one run does not show its noise")
    return args


def compare(base: Commit, candidate: Commit, seeds: range) -> tuple[Comparison[Run], str]:
    """Run what is missing, and return the comparison of both sides and the hash of the validation text."""
    for commit in (base, candidate):
        for seed in seeds:
            if reference_of(commit, seed) is None:
                make_run(commit, seed)
    revisions = [read_experiment(commit, seed) for commit in (base, candidate) for seed in seeds]
    runs = read_runs(revisions)
    sides = Group(runs[: len(seeds)]), Group(runs[len(seeds) :])
    if sides[0].runs[0].configuration == sides[1].runs[0].configuration:
        raise ParamsError(f"nothing that decides a result differs from {base.short}; change parameters or code")
    return compare_groups(*sides, RESAMPLING_SEED, CONFIDENCE, RESAMPLES), hash_of_text(revisions[0])


def hash_of_text(revision: Revision) -> str:
    """Return a hash of the validation text of a run."""
    sidecar = revision.read_json(VALIDATION_SIDECAR)
    return sha256_json([sidecar["source"].get("text_sha256"), sidecar["slice"]])[:16]


def figures_of(comparison: Comparison) -> Figures:
    """Return the figures of a comparison as judgements.csv records them."""
    base = comparison.a.scores
    candidate = comparison.b.scores
    over_seeds = welch(base, candidate, CONFIDENCE)
    return Figures(
        seeds=len(base),
        base_bpb=rounded(base.mean()),
        candidate_bpb=rounded(candidate.mean()),
        difference=rounded(over_seeds.value),
        base_sd=rounded(base.std(ddof=1)),
        candidate_sd=rounded(candidate.std(ddof=1)),
        seeds_low=rounded_or_none(over_seeds.low),
        seeds_high=rounded_or_none(over_seeds.high),
        documents_low=rounded_or_none(comparison.documents.low),
        documents_high=rounded_or_none(comparison.documents.high),
    )


def rounded(value: float) -> float:
    """Return a figure with the digits that judgements.csv keeps."""
    return round(float(value), DIGITS)


def rounded_or_none(value: float | None) -> float | None:
    return None if value is None else rounded(value)


def judge_once(base: Commit, candidate: Commit, seeds: range, former: list[Judgement]) -> Judgement:
    """Return the judgement with these seeds, and record it; one that is recorded must have the same figures."""
    comparison, text = compare(base, candidate, seeds)
    tokens = int(str(candidate.params["train.max_tokens"]))
    pair = Pair(base.hash, candidate.hash, base.tree, candidate.tree, candidate.subject, text, tokens, seeds.start)
    figures = figures_of(comparison)
    for recorded in former:
        if recorded.is_of(pair, len(seeds)):
            same_names = recorded.pair._replace(text=pair.text, tokens=pair.tokens)
            again = judge(former[: recorded.number - 1], same_names, figures)
            where = f"{JUDGEMENTS}: judgement {recorded.number}"
            reject_difference(row_of(recorded), row_of(again), where, "its runs")
            return recorded
    judged = judge(former, pair, figures)
    former.append(judged)
    write_judgements(former)
    save_picture(former)
    return judged


def sentences(judged: Judgement) -> list[str]:
    """Return a judgement for a person."""
    pair = judged.pair
    figures = judged.figures
    decision = judged.decision
    gain = "better" if figures.difference < 0 else "worse"
    more = f": {decision.more_seeds} more seeds of each side" if decision.more_seeds else ""
    lines = [
        f"{decision.answer}{more} ({decision.reason})",
        f"  {pair.candidate[:10]} ({pair.change}) has {abs(figures.difference):.4f} bits per byte {gain} than "
        f"{pair.base[:10]}: {figures.candidate_bpb:.4f} after {figures.base_bpb:.4f}",
        f"  over {figures.seeds} seeds of each: {interval(figures.seeds_low, figures.seeds_high)}; "
        f"noise of a seed {decision.noise.sd:.4f}",
        f"  over documents: {interval(figures.documents_low, figures.documents_high)}",
        f"  p {decision.p:.2g}, level of judgement {judged.number}: {decision.level:.2g}",
    ]
    if decision.more_seeds:
        lines.append(f"  go on: python src judge {pair.base[:10]} --seeds {figures.seeds + decision.more_seeds}")
    return [*lines, f"written: {JUDGEMENTS}, {PICTURE}"]


def interval(low: float | None, high: float | None) -> str:
    """Return a 95 % interval as text."""
    return "too few for an interval" if low is None or high is None else f"95 % interval {low:+.4f} to {high:+.4f}"


@exit_with_status
def main(argv: list[str]) -> int:
    """Judge the workspace against the base; return the exit status of the answer."""
    args = parse(argv)
    with output_lock(JUDGEMENTS):
        # What is compared.
        former = read_judgements()
        base = read_commit(args.base)
        candidate = commit_of_workspace()
        reject_incomparable(base, candidate, args.any_budget)
        first_seed = int(str(base.params["train.seed"]))

        # Judge, and with --go-on again with more seeds.
        num_seeds = args.seeds
        while True:
            seeds = range(first_seed, first_seed + num_seeds)
            judged = judge_once(base, candidate, seeds, former)
            num_seeds += judged.decision.more_seeds
            if not (args.go_on and judged.decision.more_seeds):
                break
            print(f"judgement {judged.number}: {judged.decision.reason}; {num_seeds} seeds follow", file=sys.stderr)

    if args.json:
        print_json(SCHEMA, {**judged.as_dict(), "reason": judged.decision.reason})
    else:
        print("\n".join(sentences(judged)))
    return STATUS[judged.decision.answer]
