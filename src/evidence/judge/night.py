"""Judge a candidate: run what is missing, compare both sides, record the row."""

import contextlib
import fcntl
import secrets
import sys
from collections.abc import Iterator, Sequence

from evidence.difference import Options, difference
from evidence.errors import Busy, CandidateCrashed, RunFailed, WrongInput
from evidence.judge.commits import Commit, own_folder
from evidence.judge.decision import DIGITS, LOOKS, MOST_SEEDS, Figures, Fresh, agrees
from evidence.judge.judgements import (
    JUDGEMENTS,
    Judgement,
    Pair,
    judge,
    read_judgements,
    reject_difference,
    row_of,
    write_judgements,
)
from evidence.judge.kept import Runner, folder_of, losses_of
from evidence.runs import Group, Run, text_hash

FRESH_SEEDS = range(10_000, 2**31)  # far from those that people choose
FRESH_TRIES = 2  # one in a hundred honest runs is far from the others


@contextlib.contextmanager
def only_judge() -> Iterator[None]:
    """Raise Busy if another judge works in this repository."""
    folder = own_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another judge works in this repository and writes {JUDGEMENTS}; wait until it ends") from None
        yield


def judge_candidate(
    runner: Runner,
    base: Commit,
    candidate: Commit,
    most_seeds: int,
    first_seed: int,
    least_gain: float,
) -> Judgement:
    """Judge a candidate with more and more seeds until it is decided, or has `most_seeds`; record each judgement."""
    if not LOOKS[0] <= most_seeds <= MOST_SEEDS:
        raise WrongInput(f"--seeds is {most_seeds}; it must be from {LOOKS[0]} to {MOST_SEEDS}")
    if least_gain < 0:
        raise WrongInput(f"--least-gain is {least_gain:g}; it must be at least 0")
    if base.tree == candidate.tree:
        raise WrongInput(f"nothing differs from {base.short}; change something, or name an earlier commit as base")
    metric = str(runner.metric or "")
    pair = Pair(
        base.hash, candidate.hash, base.tree, candidate.tree, candidate.subject, "", metric, first_seed, least_gain
    )
    with only_judge():
        previous = read_judgements()
        for num_seeds in sorted({min(look, most_seeds) for look in LOOKS}):
            judged = judge_once(runner, base, candidate, previous, pair, num_seeds)
            print(f"judgement {judged.number}: {judged.decision.reason}", file=sys.stderr)
            if judged.decision.answer != "undecided":
                break
        return judged


def judge_once(
    runner: Runner,
    base: Commit,
    candidate: Commit,
    previous: list[Judgement],
    pair: Pair,
    num_seeds: int,
) -> Judgement:
    """Return the judgement with these seeds, and record it; one that is recorded must have the same figures."""
    # Run what is missing.
    first = pair.first_seed
    of_base = losses_of(runner, base, range(first, first + seeds_of_base(num_seeds)), RunFailed)
    of_candidate = losses_of(runner, candidate, range(first, first + num_seeds), CandidateCrashed)
    reject_other_documents(base, candidate, [*of_base, *of_candidate])
    figures = figures_of(of_base, of_candidate)
    pair = pair._replace(text=text_hash(of_base[0]))

    # A change that was judged before has its row.
    same = [each for each in previous if each.pair.rule == pair.rule and each.figures.seeds == num_seeds]
    if same:
        recorded = same[0]
        again = recorded._replace(pair=recorded.pair._replace(text=pair.text), figures=figures)
        reject_difference(row_of(recorded), row_of(again), f"{JUDGEMENTS}: judgement {recorded.number}", "its runs")
        return recorded

    # One that is about to be kept must be better with a seed that nobody ran, too.
    judged = judge(previous, pair, figures)
    if judged.is_kept:
        for _ in range(FRESH_TRIES):
            fresh = fresh_runs(runner, base, candidate, of_base[0])
            if agrees(judged.decision, figures, fresh):
                break
        else:
            found = f"{fresh.difference:+.4f} with seed {fresh.seed}, {figures.pairs_mean:+.4f} in kept runs"
            folders = f"{folder_of(runner, base)} and {folder_of(runner, candidate)}"
            remedy = f"name data outside Git with --input, or remove {folders}, and judge again"
            raise RunFailed(f"new runs disagree with kept ones: {found}; {remedy}")
        judged = judge(previous, pair, figures, fresh)
    previous.append(judged)
    write_judgements(previous)
    return judged


def fresh_runs(runner: Runner, base: Commit, candidate: Commit, kept: Run) -> Fresh:
    """Run both sides with a seed at random, and return their losses on the documents of the kept runs."""
    seed = secrets.choice(FRESH_SEEDS)
    (of_base,) = losses_of(runner, base, [seed], RunFailed)
    (of_candidate,) = losses_of(runner, candidate, [seed], CandidateCrashed)
    reject_other_documents(base, candidate, [kept, of_base, of_candidate])
    return Fresh(seed, rounded(of_base.score), rounded(of_candidate.score))


def seeds_of_base(num_seeds: int) -> int:
    """Return how many runs of the base such a judgement has; all candidates share them."""
    return LOOKS[1] if num_seeds < LOOKS[1] else MOST_SEEDS


def reject_other_documents(base: Commit, candidate: Commit, runs: Sequence[Run]) -> None:
    """Raise CandidateCrashed unless all runs scored the same documents."""
    if len({text_hash(losses) for losses in runs}) > 1:
        raise CandidateCrashed(f"{candidate.short} and {base.short} scored other documents")


def figures_of(of_base: Sequence[Run], of_candidate: Sequence[Run]) -> Figures:
    """Return the figures of two sides in bits per byte; each seed of the candidate is one of the base, too."""
    base = Group("base", list(of_base), [])
    candidate = Group("candidate", list(of_candidate), [])
    found = difference(base, candidate, Options())
    scores = (base.scores, candidate.scores, found.b.scores - found.a.scores)
    return Figures(
        len(of_candidate),
        len(of_base),
        *(rounded(each.mean()) for each in scores),
        *(rounded(each.std(ddof=1)) for each in scores),
        documents_low=None if found.documents.low is None else rounded(found.documents.low),
        documents_high=None if found.documents.high is None else rounded(found.documents.high),
    )


def rounded(value: float) -> float:
    """Return a figure with the digits that judgements.csv keeps; a spread of rounding errors alone is 0."""
    return float(f"{round(value, DIGITS):.{DIGITS}g}")
