"""Judge a candidate: run what is missing, compare both sides, record the row."""

import contextlib
import fcntl
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from evidence.errors import Busy, CandidateCrashed, WrongInput
from evidence.intervals import ratio_interval
from evidence.judge.commits import Commit, own_folder
from evidence.judge.decision import DIGITS, LOOKS, MOST_SEEDS, Figures
from evidence.judge.judgements import (
    JUDGEMENTS,
    Judgement,
    Pair,
    judge,
    reject_difference,
    row_of,
    write_judgements,
)
from evidence.judge.kept import Runner, losses_of
from evidence.runs import LossRun

RESAMPLES = 1999
RESAMPLING_SEED = 1


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
    former: list[Judgement],
    num_seeds: int = LOOKS[0],
    first_seed: int = 1,
    least_gain: float = 0.0,
    go_on: bool = False,
) -> Judgement:
    """Judge a candidate with `num_seeds`, with `go_on` again with more until it is decided; record each judgement."""
    if base.tree == candidate.tree:
        raise WrongInput(f"nothing differs from {base.short}; change something, or name an earlier commit as base")
    while True:
        judged = judge_once(runner, base, candidate, former, num_seeds, first_seed, least_gain)
        decision = judged.decision
        if not (go_on and decision.more_seeds):
            return judged
        more_of_base = seeds_of_base(num_seeds + decision.more_seeds) - seeds_of_base(num_seeds)
        follow = f"at most {decision.more_seeds + more_of_base} runs follow"
        print(f"judgement {judged.number}: {decision.reason}; {follow}", file=sys.stderr)
        num_seeds += decision.more_seeds


def judge_once(
    runner: Runner,
    base: Commit,
    candidate: Commit,
    former: list[Judgement],
    num_seeds: int,
    first_seed: int,
    least_gain: float,
) -> Judgement:
    """Return the judgement with these seeds, and record it; one that is recorded must have the same figures."""
    # A change that was judged is judged again with the seeds of its row.
    own = Pair(base.hash, candidate.hash, base.tree, candidate.tree, candidate.subject, "", first_seed, least_gain)
    recorded = next((each for each in former if each.is_of(own, num_seeds)), None)
    base_seeds = recorded.figures.base_seeds if recorded else seeds_of_base(num_seeds)

    # Run what is missing.
    of_base = losses_of(runner, base, range(first_seed, first_seed + base_seeds), is_base=True)
    of_candidate = losses_of(runner, candidate, range(first_seed, first_seed + num_seeds), is_base=False)
    reject_other_documents(base, candidate, of_base, of_candidate)
    pair = own._replace(text=hash_of_text(of_base[0]))
    figures = figures_of(of_base, of_candidate)

    if recorded:
        again = judge(former[: recorded.number - 1], recorded.pair._replace(text=pair.text), figures)
        where = f"{JUDGEMENTS}: judgement {recorded.number}"
        reject_difference(row_of(recorded), row_of(again), where, "its runs")
        return recorded
    judged = judge(former, pair, figures)
    former.append(judged)
    write_judgements(former)
    return judged


def seeds_of_base(num_seeds: int) -> int:
    """Return how many runs of the base such a judgement has; all candidates share them."""
    return LOOKS[1] if num_seeds < LOOKS[1] else max(MOST_SEEDS, num_seeds)


def hash_of_text(losses: LossRun) -> str:
    """Return a short hash of the names and sizes of the documents."""
    rows = zip(losses.documents, losses.utf8_bytes, strict=True)
    content = "\n".join(f"{name}\t{size}" for name, size in rows)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def reject_other_documents(base: Commit, candidate: Commit, a: Sequence[LossRun], b: Sequence[LossRun]) -> None:
    """Raise CandidateCrashed unless all runs scored the same documents."""
    first = a[0]
    for losses in (*a, *b):
        if losses.documents != first.documents or not np.array_equal(losses.utf8_bytes, first.utf8_bytes):
            raise CandidateCrashed(f"{candidate.short} and {base.short} scored other documents")


def figures_of(of_base: Sequence[LossRun], of_candidate: Sequence[LossRun]) -> Figures:
    """Return the figures of two sides whose first runs have equal seeds, in bits per byte."""
    seeds = len(of_candidate)
    base = np.array([losses.score for losses in of_base])
    candidate = np.array([losses.score for losses in of_candidate])
    pairs = candidate - base[:seeds]

    # Over documents: the mean over the pairs, of each document.
    of_documents = []
    for a, b in zip(of_base, of_candidate, strict=False):
        of_documents.append((b.nats - a.nats) / math.log(2))
    bits = np.mean(of_documents, axis=0)
    rng = np.random.default_rng(RESAMPLING_SEED)
    documents = ratio_interval(bits, of_base[0].utf8_bytes, rng, resamples=RESAMPLES)
    return Figures(
        seeds=seeds,
        base_seeds=len(base),
        base_mean=rounded(base.mean()),
        candidate_mean=rounded(candidate.mean()),
        pairs_mean=rounded(pairs.mean()),
        base_sd=rounded(base.std(ddof=1)),
        candidate_sd=rounded(candidate.std(ddof=1)),
        pairs_sd=rounded(pairs.std(ddof=1)),
        documents_low=None if documents.low is None else rounded(documents.low),
        documents_high=None if documents.high is None else rounded(documents.high),
    )


def rounded(value: float) -> float:
    """Return a figure with the digits that judgements.csv keeps."""
    return round(float(value), DIGITS)
