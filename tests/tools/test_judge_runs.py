"""judge on real experiments: the answer is that of their files, a base is run once, and forgeries are refused."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import dvc.api
import numpy as np
import pytest

from support import ROOT
from support.refusal import refused
from support.workspace import Workspace
from tools.judge.cli import main
from tools.judge.commits import read_commit
from tools.judge.judgements import columns
from tools.judge.runs import name_of

SEEDS = (1, 2)


def save_runs(workspace: Workspace, seeds=SEEDS) -> None:
    """Run the files of HEAD with each seed in this process, which takes a third of the time of `dvc exp run`."""
    with contextlib.chdir(workspace.folder):
        commit = read_commit("HEAD")
    for seed in seeds:
        workspace.change(**{"train.seed": seed})
        workspace.run_stages()
        workspace.run("dvc", "commit", "--force", "dvc.yaml")
        workspace.run("git", "commit", "--all", "--allow-empty", "--quiet", "--message", "An experiment is a commit")
        workspace.run(
            "git", "update-ref", f"refs/exps/{commit.hash[:2]}/{commit.hash[2:]}/{name_of(commit, seed)}", "HEAD"
        )
        workspace.run("git", "reset", "--hard", "HEAD~1")


@pytest.fixture(scope="module")
def night(tmp_path_factory, finished):
    """Return a workspace with two commits, the second with ten times the learning rate, and two runs of each."""
    workspace = Workspace(tmp_path_factory.mktemp("judge"), finished)
    workspace.commit("The base")
    save_runs(workspace)
    workspace.run("git", "tag", "base")
    workspace.change(**{"train.peak_lr": 0.1})
    workspace.commit("A higher learning rate")
    save_runs(workspace)
    workspace.run("git", "tag", "higher")
    return workspace


@pytest.fixture
def judge(night, monkeypatch, capsys):
    """The command in the workspace, which is left as it was: (exit status, standard output, standard error)."""
    monkeypatch.chdir(night.folder)
    night.run("git", "checkout", "--force", "higher")
    night.run("git", "clean", "-fdx", "judgements.csv")
    capsys.readouterr()

    def run_it(*arguments: str):
        return main(list(arguments)), *capsys.readouterr()

    return run_it


def measured(workspace: Workspace, revision: str) -> np.ndarray:
    """Return the bits per byte of the runs of a commit, read by DVC's own API."""
    commit = read_commit(revision)
    texts = [dvc.api.read("metrics/eval.json", rev=name_of(commit, seed)) for seed in SEEDS]
    return np.array([json.loads(text)["bits_per_byte"] for text in texts])


def test_the_figures_are_those_of_the_runs(night, judge):
    status, output, _ = judge("base", "--seeds", "2", "--json")

    row = json.loads(output)
    base = measured(night, "base")
    higher = measured(night, "higher")
    assert row["difference"] == pytest.approx(higher.mean() - base.mean(), abs=1e-6)
    assert row["base_sd"] == pytest.approx(base.std(ddof=1), abs=1e-6)
    assert row["change"] == "A higher learning rate" and row["seeds"] == 2
    assert status == {"keep": 0, "reject": 1, "undecided": 3}[row["answer"]]
    assert set(row) == {"schema", "reason", *documented_keys()} and row["schema"] == "reprolm.judge/1"


def documented_keys() -> list[str]:
    """Return the columns of judgements.csv in the table of its page."""
    page = (ROOT / "docs/search.md").read_text()
    table = page[page.index("| column, and key of `--json`") :]
    return re.findall(r"^\| `(\w+)` \|", table[: table.index("\n\n")], re.M)


def test_a_judgement_adds_a_row_and_the_same_one_again_adds_none(night, judge):
    first = judge("base", "--seeds", "2", "--json")
    content = (night.folder / "judgements.csv").read_text()
    again = judge("base", "--seeds", "2", "--json")

    assert first[:2] == again[:2] and len(content.splitlines()) == 2
    assert (night.folder / "judgements.csv").read_text() == content
    assert (night.folder / "judgements.png").exists()


def test_the_answer_for_a_person_names_both_sides_and_how_to_go_on(night, judge):
    output = judge("base", "--seeds", "2")[1]

    assert re.match(r"(keep|reject|undecided)", output)
    assert "(A higher learning rate) has" in output and "level of judgement 1" in output


def test_a_change_that_was_undone_is_judged_as_before(night, judge):
    """A revert has another commit and the files of the base, whose runs are known."""
    judge("base", "--seeds", "2")
    night.run("git", "revert", "--no-edit", "HEAD")
    night.commit("The row of the judgement, which is no part of what is judged")
    night.run("git", "revert", "--no-edit", "HEAD~1")

    status, _, error = judge("base", "--seeds", "2")

    assert status in (0, 1, 3) and "running" not in error
    assert len((night.folder / "judgements.csv").read_text().splitlines()) == 2


def test_an_edited_judgement_is_refused(night, judge):
    judge("base", "--seeds", "2")
    path = night.folder / "judgements.csv"
    low = path.read_text().splitlines()[1].split(",")[columns().index("documents_low")]
    path.write_text(path.read_text().replace(low, "-9.00000000"))

    status, _, error = judge("base", "--seeds", "2")

    refused(status, error, 4, "judgement 1: ", "the file was edited")


def test_what_cannot_be_compared_is_refused_before_anything_runs(night, judge):
    for values, code, said in (
        ({"train.seed": 7}, 2, "train.seed is 1 in"),
        ({"train.max_tokens": 20480}, 2, "train.max_tokens is 10240 in"),
        ({"eval.stride_fraction": 1.0}, 2, "eval.stride_fraction is 0.5 in"),
    ):
        night.change(**values)
        status, output, error = judge("base")
        night.run("git", "checkout", "--force", "higher")
        refused(status, error, code, said)
        assert output == "" and "running" not in error

    status, _, error = judge("higher")
    refused(status, error, 2, "nothing differs from")
    status, _, error = judge("nonsense")
    refused(status, error, 2, "nonsense is not a Git revision")
    status, _, error = judge("base", "--seeds", "1")
    refused(status, error, 2, "--seeds is 1; it must be at least 2")


def test_code_that_scores_is_refused(night, judge):
    path = night.folder / "src/lm/evaluate/intervals.py"
    path.write_text(path.read_text() + "# changed\n")

    status, _, error = judge("base", "--seeds", "2")

    refused(status, error, 4, "src/lm/evaluate/intervals.py differs from", "it decides how models are scored")


def test_edited_metrics_of_an_experiment_change_nothing(night, judge):
    honest = judge("base", "--seeds", "2", "--json")[1]
    (night.folder / "judgements.csv").unlink()

    with forged(night, "metrics/eval.json", r'"bits_per_byte": [\d.]+', '"bits_per_byte": 0.1'):
        assert judge("base", "--seeds", "2", "--json")[1] == honest


def test_an_experiment_with_other_code_is_refused(night, judge):
    with forged(night, "src/train.py", '"""', '"""Forged. '):
        status, _, error = judge("base", "--seeds", "2")

    refused(status, error, 4, "src/train.py is not the file of", "`dvc exp remove")


def test_an_experiment_with_other_parameters_is_refused(night, judge):
    with forged(night, "dvc.lock", "peak_lr: 0.1", "peak_lr: 0.2"):
        status, _, error = judge("base", "--seeds", "2")

    refused(status, error, 4, "train.peak_lr is 0.2, and in")


def test_an_evaluation_of_other_weights_is_refused(night, judge):
    """dvc.lock records the weights twice: as the output of train and as an input of eval, which comes first."""
    with forged(night, "dvc.lock", r"(path: data/models\n +hash: md5\n +md5: )[0-9a-f]{4}", r"\g<1>0000"):
        status, _, error = judge("base", "--seeds", "2")

    refused(status, error, 4, "eval did not run on the outputs of the stages before it")


@contextlib.contextmanager
def forged(workspace: Workspace, path: str, pattern: str, new: str):
    """Let the experiment of seed 1 of the candidate name a commit in which a file was edited, once."""
    name = name_of(read_commit("higher"), 1)
    reference = workspace.run("git", "for-each-ref", "--format=%(refname)", f"refs/exps/*/*/{name}").stdout.strip()
    honest = workspace.run("git", "rev-parse", reference).stdout.strip()
    workspace.run("git", "checkout", "--force", "--detach", honest)
    file = workspace.folder / path
    text, count = re.subn(pattern, new, file.read_text(), count=1)
    assert count == 1
    file.write_text(text)
    workspace.run("git", "commit", "--all", "--quiet", "--message", "forged")
    workspace.run("git", "update-ref", reference, "HEAD")
    workspace.run("git", "checkout", "--force", "higher")
    try:
        yield
    finally:
        workspace.run("git", "update-ref", reference, honest)


@pytest.mark.slow
def test_a_run_that_fails_is_one_sentence_and_no_judgement(night, judge):
    """Its base was run before. What failed is run again by the next call."""
    night.change(**{"train.peak_lr": -1.0})

    status, output, error = judge("base", "--seeds", "2")

    refused(status, error, 5, "the run of", "with train.seed 1 failed, as said above")
    assert output == "" and not (night.folder / "judgements.csv").exists()


@pytest.mark.slow
def test_runs_are_made_once_interrupted_ones_go_on_and_own_text_is_read(tmp_path):
    """The text lies in data/local, which Git ignores. A queued experiment stays in the queue."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    workspace.commit()
    workspace.run("git", "rm", "--cached", "--quiet", "data/local/small.jsonl")
    workspace.run("git", "commit", "--quiet", "--message", "The text is no part of Git")
    workspace.run("dvc", "exp", "run", "--queue", "--name", "other", "-S", "train.seed=9")
    workspace.change(**{"train.peak_lr": 0.03})
    command = [sys.executable, "src", "judge", "HEAD", "--seeds", "2", "--json"]

    # Stop the first call in its training.
    process = subprocess.Popen(
        command, cwd=tmp_path, env=workspace.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    for line in process.stderr:
        if "Running stage 'train'" in line:
            break
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)
    output, error = process.communicate()
    assert (process.returncode, output) == (130, "") and "Traceback" not in error.splitlines()[-1]

    # The next call goes on, and one after it has nothing to run.
    first = workspace.run(*command, check=False)
    second = workspace.run(*command, check=False)
    row = json.loads(first.stdout)
    assert first.stdout == second.stdout and first.returncode == second.returncode in (0, 1, 3)
    assert row["difference"] < 0 and "running judge-" in first.stderr and "running judge-" not in second.stderr
    assert "other" in workspace.run("dvc", "queue", "status").stdout
    assert workspace.get("train.peak_lr") == 0.03 and workspace.get("train.seed") == 1
