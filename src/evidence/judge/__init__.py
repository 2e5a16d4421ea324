r"""Judge the changes of a night, one after the other: run both sides with the same seeds, and keep what is shown.

from evidence.judge import judge

judgement = judge("HEAD~1", ["./train.sh"], metric=r"val_bpb:\s*(\S+)")
print(judgement.decision.answer)
"""

import re
from collections.abc import Sequence
from pathlib import Path

from evidence.errors import WrongInput
from evidence.judge.commits import commit_of_workspace, read_commit, reject_absent, reject_changed
from evidence.judge.decision import MOST_SEEDS
from evidence.judge.judgements import JUDGEMENTS, Judgement
from evidence.judge.kept import Metric, Runner
from evidence.judge.night import judge_candidate

LEFT_OUT = (str(JUDGEMENTS),)


def judge(
    base: str,
    run: Sequence[str],
    *,
    metric: str | None = None,
    higher_is_better: bool = False,
    fixed: Sequence[str] = (),
    inputs: Sequence[str | Path] = (),
    seeds: int = MOST_SEEDS,
    first_seed: int = 1,
    least_gain: float = 0.0,
) -> Judgement:
    """Judge the working directory, a Git repository, against a commit; record the judgement and return it.

    Its `decision.answer` is keep, reject or undecided. Every argument is that of the command `evidence judge`.

    Args:
        base: the Git revision to be better than.
        run: a program and its arguments. It writes losses of documents, or prints a metric.
        metric: a pattern whose only group is a number that the run prints; the last match counts.
        higher_is_better: whether more of the metric is better; its numbers are negated then.
        fixed: files and folders that the candidate may not change.
        inputs: files and folders outside Git that decide a run. A worktree has links to those below this folder.
        seeds: most seeds of the candidate.
        first_seed: seeds count from here.
        least_gain: keep only a larger gain, in bits per byte or in the unit of the metric.

    Raises:
        CandidateCrashed: the candidate's run failed, or gave no result.
        EvidenceError: nothing was judged.
    """
    if not run:
        raise WrongInput("--run is empty; it must be a program and its arguments")
    base_commit = read_commit(base, LEFT_OUT)
    candidate = commit_of_workspace(LEFT_OUT)
    reject_absent(base_commit, fixed)
    reject_changed(base_commit, candidate, may_change=(), fixed=fixed)
    runner = Runner(tuple(run), files_of(inputs), read_metric(metric, higher_is_better))
    return judge_candidate(runner, base_commit, candidate, seeds, first_seed, least_gain)


def files_of(inputs: Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the files, and those of the folders. Raise WrongInput if one is missing."""
    paths = [Path(each) for each in inputs]
    for path in paths:
        if not path.exists():
            raise WrongInput(f"--input is {path}; it must be a file or a folder")
    found = {file for path in paths for file in [path, *path.rglob("*")] if file.is_file()}
    return tuple(sorted(found))


def read_metric(pattern: str | None, is_higher_better: bool) -> Metric | None:
    """Return the metric, None if there is no pattern. Raise WrongInput unless the pattern has one group."""
    if pattern is None:
        return None
    try:
        num_groups = re.compile(pattern).groups
    except re.error:
        num_groups = 0
    if num_groups != 1:
        raise WrongInput(rf"--metric is {pattern}; it must be a pattern with one group, such as 'val_bpb:\s*(\S+)'")
    return Metric(pattern, is_higher_better)
