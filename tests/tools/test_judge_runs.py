"""judge on real experiments: the answer is that of their files, a base is run once, and forgeries are refused."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

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
        reference = f"refs/exps/{commit.hash[:2]}/{commit.hash[2:]}/{name_of(commit, seed)}"
        workspace.change(**{"train.seed": seed})
        workspace.run_stages()
        workspace.run("dvc", "commit", "--force", "dvc.yaml")
        workspace.run("git", "commit", "--all", "--allow-empty", "--quiet", "--message", "An experiment is a commit")
        workspace.run("git", "update-ref", reference, "HEAD")
        workspace.run("git", "reset", "--hard", "HEAD~1")


@pytest.fixture(scope="module")
def night(tmp_path_factory, finished) -> Workspace:
    """A workspace with two commits, the second with ten times the learning rate, and two runs of each."""
    workspace = Workspace(tmp_path_factory.mktemp("judge"), finished)
    workspace.commit("The base")
    save_runs(workspace)
    workspace.run("git", "tag", "base")
    workspace.change(**{"train.peak_lr": 0.1})
    workspace.commit("A higher learning rate")
    save_runs(workspace)
    workspace.run("git", "tag", "higher")
    return workspace


class Done(NamedTuple):
    """What a call of the command left."""

    status: int
    output: str
    errors: str


@pytest.fixture
def judge(night, monkeypatch, capsys):
    """The command in the workspace without judgements, as a function of its arguments."""
    monkeypatch.chdir(night.folder)
    night.run("git", "checkout", "--force", "higher")
    night.run("git", "clean", "-fdx", "judgements.csv")
    capsys.readouterr()

    def run_it(*arguments: str) -> Done:
        status = main(list(arguments))
        return Done(status, *capsys.readouterr())

    return run_it


@pytest.fixture
def table(judge) -> Path:
    """The file of judgements, in the working directory."""
    return Path("judgements.csv")


# Figures and answers.


def measured(revision: str) -> np.ndarray:
    """Return the bits per byte of the runs of a commit, read by DVC's own API."""
    commit = read_commit(revision)
    scores = []
    for seed in SEEDS:
        metrics = json.loads(dvc.api.read("metrics/eval.json", rev=name_of(commit, seed)))
        scores.append(metrics["bits_per_byte"])
    return np.array(scores)


def test_the_figures_are_those_of_the_runs(judge):
    done = judge("base", "--seeds", "2", "--json")

    row = json.loads(done.output)
    base = measured("base")
    higher = measured("higher")
    assert row["change"] == "A higher learning rate"
    assert row["seeds"] == 2
    assert row["difference"] == pytest.approx(higher.mean() - base.mean(), abs=1e-6)
    assert row["base_sd"] == pytest.approx(base.std(ddof=1), abs=1e-6)
    assert done.status == {"keep": 0, "reject": 1, "undecided": 3}[row["answer"]]


def test_the_json_has_the_documented_keys(judge):
    row = json.loads(judge("base", "--seeds", "2", "--json").output)

    assert row["schema"] == "reprolm.judge/1"
    assert set(row) == {"schema", "reason", *documented_keys()}


def documented_keys() -> list[str]:
    """Return the columns of judgements.csv in the table of its page."""
    page = (ROOT / "docs/search.md").read_text()
    start = page.index("| column, and key of `--json`")
    end = page.index("\n\n", start)
    return re.findall(r"^\| `(\w+)` \|", page[start:end], re.M)


def test_a_judgement_adds_a_row_and_the_same_one_again_adds_none(judge, table):
    first = judge("base", "--seeds", "2", "--json")
    content = table.read_text()
    again = judge("base", "--seeds", "2", "--json")

    assert again.status == first.status
    assert again.output == first.output
    assert len(content.splitlines()) == 2
    assert table.read_text() == content
    assert Path("judgements.png").exists()


def test_the_answer_for_a_person_names_both_sides_and_how_to_go_on(judge):
    output = judge("base", "--seeds", "2").output

    assert re.match(r"(keep|reject|undecided)", output)
    assert "(A higher learning rate) has" in output
    assert "level of judgement 1" in output


def test_a_change_that_was_undone_is_judged_as_before(night, judge, table):
    """A revert has another commit and the files of the base, whose runs are known."""
    judge("base", "--seeds", "2")
    night.run("git", "revert", "--no-edit", "HEAD")
    night.commit("The row of the judgement, which is no part of what is judged")
    night.run("git", "revert", "--no-edit", "HEAD~1")

    done = judge("base", "--seeds", "2")

    assert done.status in (0, 1, 3)
    assert "running" not in done.errors
    assert len(table.read_text().splitlines()) == 2


def test_an_edited_judgement_is_refused(judge, table):
    judge("base", "--seeds", "2")
    text = table.read_text()
    values = text.splitlines()[1].split(",")
    low = values[columns().index("documents_low")]
    table.write_text(text.replace(low, "-9.00000000"))

    done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 4, "judgement 1: ", "the file was edited")


# What cannot be judged.


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train.seed", 7, "train.seed is 1 in"),
        ("train.max_tokens", 20480, "train.max_tokens is 10240 in"),
        ("eval.stride_fraction", 1.0, "eval.stride_fraction is 0.5 in"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(night, judge, name, value, said):
    night.change(**{name: value})

    done = judge("base")

    refused(done.status, done.errors, 2, said)
    assert done.output == ""
    assert "running" not in done.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["higher"], "nothing differs from"),
        (["nonsense"], "nonsense is not a Git revision"),
        (["base", "--seeds", "1"], "--seeds is 1; it must be at least 2"),
    ],
)
def test_what_is_not_a_change_is_refused(judge, arguments, said):
    done = judge(*arguments)

    refused(done.status, done.errors, 2, said)


def test_code_that_scores_is_refused(night, judge):
    path = night.folder / "src/evidence/intervals.py"
    path.write_text(path.read_text() + "# changed\n")

    done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 4, "src/evidence/intervals.py differs from", "it decides how models are scored")


def test_edited_metrics_of_an_experiment_change_nothing(night, judge, table):
    of_honest = judge("base", "--seeds", "2", "--json")
    table.unlink()

    with forged(night, "metrics/eval.json", r'"bits_per_byte": [\d.]+', '"bits_per_byte": 0.1'):
        of_forged = judge("base", "--seeds", "2", "--json")

    assert of_forged.output == of_honest.output


def test_an_experiment_with_other_code_is_refused(night, judge):
    with forged(night, "src/train.py", '"""', '"""Forged. '):
        done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 4, "src/train.py is not the file of", "`dvc exp remove")


def test_an_experiment_with_other_parameters_is_refused(night, judge):
    with forged(night, "dvc.lock", "peak_lr: 0.1", "peak_lr: 0.2"):
        done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 4, "train.peak_lr is 0.2, and in")


def test_an_evaluation_of_other_weights_is_refused(night, judge):
    """dvc.lock records the weights twice: as the output of train and as an input of eval, which comes first."""
    with forged(night, "dvc.lock", r"(path: data/models\n +hash: md5\n +md5: )[0-9a-f]{4}", r"\g<1>0000"):
        done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 4, "eval did not run on the outputs of the stages before it")


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
def test_a_run_that_fails_is_one_sentence_and_no_judgement(night, judge, table):
    """Its base was run before. What failed is run again by the next call."""
    night.change(**{"train.peak_lr": -1.0})

    done = judge("base", "--seeds", "2")

    refused(done.status, done.errors, 5, "the run of", "with train.seed 1 failed, as said above")
    assert done.output == ""
    assert not table.exists()


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
        command,
        cwd=tmp_path,
        env=workspace.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if "Running stage 'train'" in line:
            break
    time.sleep(2)
    os.killpg(process.pid, signal.SIGINT)
    output, error = process.communicate()
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in error.splitlines()[-1]

    # The next call goes on, and one after it has nothing to run.
    first = workspace.run(*command, check=False)
    second = workspace.run(*command, check=False)
    assert json.loads(first.stdout)["difference"] < 0
    assert first.returncode in (0, 1, 3)
    assert second.returncode == first.returncode
    assert second.stdout == first.stdout
    assert "running judge-" in first.stderr
    assert "running judge-" not in second.stderr

    # The workspace and the queue are as they were.
    assert "other" in workspace.run("dvc", "queue", "status").stdout
    assert workspace.get("train.peak_lr") == 0.03
    assert workspace.get("train.seed") == 1
