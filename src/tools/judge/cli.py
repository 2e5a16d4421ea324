"""Judge a change: is the workspace better than BASE, after all that was tried before?

    python src judge HEAD~1
    python src judge best --json

It runs both sides with the same seeds, each in a worktree of its commit, until the answer is decided. The code of the
base scores all models. Runs made before are reused. Exit status: 0 keep, 1 reject, 3 undecided after --seeds N, 6 the
candidate crashed; any other is not a judgement. Each judgement is a row of judgements.csv, and the level at which the
next one keeps a change follows from the rows before it.
"""

import argparse
import sys
from pathlib import Path

from evidence.errors import EvidenceError, WrongInput
from evidence.judge import LEFT_OUT, files_of
from evidence.judge.cli import add_arguments, say
from evidence.judge.commits import Commit, commit_of_workspace, git, read_commit, reject_changed
from evidence.judge.judgements import Judgement
from evidence.judge.kept import Runner
from evidence.judge.night import judge_candidate
from lm.core.errors import UserError, exit_with_status
from lm.core.params import parse_yaml
from tools.record.arguments import tool_parser
from tools.record.held_out import TEST_READS
from tools.record.parameters import flatten
from tools.record.paths import LOCK, METRICS, PARAMS, PLOTS, PRESETS

# Files that do not affect a run: results and documentation.
DECIDES_NOTHING = (*LEFT_OUT, *map(str, (LOCK, METRICS, PLOTS, TEST_READS)))
DECIDES_NOTHING += ("docs", "tests", "README.md", "CHANGELOG.md")
# Files that a candidate may change: those that train. All others prepare or score text, and are those of the base.
MAY_CHANGE = (
    *map(str, (PARAMS, PRESETS)),
    "src/train.py",
    "src/make_tokenizer.py",
    "src/lm/model",
    "src/lm/train",
    "src/lm/tokenizer",
)
SCORES = ("src/lm/model/score.py", "src/lm/model/causality.py")
# Parameters that must be equal on both sides, with the reason.
SEED = "train.seed"
LENGTH = "train.max_tokens"
AGREE = {
    SEED: "leave it, judge runs several seeds",
    LENGTH: "so the longer run may be better for that reason; with --any-budget it counts",
    "train.init_from": "both must start from the same weights",
    "data.source": "both must be scored on the same text",
    "local.path": "both must be scored on the same text",
    "tokenizer.path": "judge cannot know what made this tokenizer",
}
SCORING = "eval."
# Folders of the user outside Git, by the parameters that name them.
OUTSIDE_GIT = ("local.path", "train.init_from", "tokenizer.path")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = tool_parser("judge", __doc__)
    add_arguments(parser)
    parser.add_argument("--any-budget", action="store_true", help="let the sides differ in train.max_tokens")
    return parser.parse_args(argv)


def read_params(commit: Commit) -> dict[str, object]:
    """Return the parameters of a commit by dotted name."""
    text = git("show", f"{commit.hash}:./{PARAMS}")
    return flatten(parse_yaml(text, f"{PARAMS} of {commit.short}"))


def reject_incomparable(base: dict[str, object], candidate: dict[str, object], any_budget: bool) -> None:
    """Raise WrongInput if the candidate changes how models are scored, or a parameter that must be equal."""
    for name in base | candidate:
        if name == LENGTH and any_budget:
            continue
        reason = "both must be scored alike" if name.startswith(SCORING) else AGREE.get(name)
        if reason and base.get(name) != candidate.get(name):
            raise WrongInput(f"{name} is {base.get(name)} in the base and {candidate.get(name)} here; {reason}")


def files_outside_git(params: dict[str, object]) -> tuple[Path, ...]:
    """Return the user's files that decide a run: text, weights and a tokenizer of their own."""
    named = [Path(str(params[name])) for name in OUTSIDE_GIT if name in params]
    return files_of([path for path in named if path.exists()])


def judge(args: argparse.Namespace) -> Judgement:
    """Judge the workspace against the base; record the judgement."""
    base = read_commit(args.base, DECIDES_NOTHING)
    candidate = commit_of_workspace(DECIDES_NOTHING)
    reject_changed(base, candidate, MAY_CHANGE, SCORES)
    params = read_params(base)
    reject_incomparable(params, read_params(candidate), args.any_budget)

    # Run what is missing, and compare.
    runner = Runner((sys.executable, "src", "judge_run"), files_outside_git(params))
    first_seed = int(str(params[SEED]))
    return judge_candidate(runner, base, candidate, args.seeds, first_seed, args.least_gain)


@exit_with_status
def main(argv: list[str]) -> int:
    """Judge the workspace against the base; return the exit status of the answer."""
    args = parse(argv)
    try:
        return say(lambda: judge(args), args.json)
    except EvidenceError as error:
        raise as_user_error(error) from None


def as_user_error(error: EvidenceError) -> UserError:
    """Return the error as one of this project, with its sentence and exit status."""
    found = UserError(str(error))
    found.exit_code = error.exit_code
    return found
