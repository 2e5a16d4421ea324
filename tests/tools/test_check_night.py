"""`python src check_night`: a result of a night is checked in clean clones, on text that no stage reads."""

import contextlib
import re

import numpy as np
import pytest

from support.refusal import refused
from support.workspace import Workspace
from tools.judge import check_night
from tools.judge.check_night import Compressed, main


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Workspace:
    """A workspace with a test split and two commits: a base that hardly learns, and a higher learning rate."""
    workspace = Workspace(tmp_path_factory.mktemp("night"))
    workspace.make_small()
    workspace.change(**{"sources.small.fetch.split.test_documents": 40, "train.peak_lr": 0.0001})
    workspace.commit("The base")
    workspace.change(**{"train.peak_lr": 0.03})
    workspace.commit("A higher learning rate")
    workspace.run("git", "tag", "start")
    return workspace


@pytest.fixture
def workspace(repository, monkeypatch) -> Workspace:
    """The same, as it was committed, as the working directory."""
    monkeypatch.chdir(repository.folder)
    repository.go_back("start")
    return repository


@pytest.mark.slow
def test_a_gain_is_confirmed_by_text_that_no_stage_reads(workspace, tmp_path):
    """A variable of the shell, by which each run would import another torch, is not passed on."""
    (tmp_path / "torch.py").write_text("raise SystemExit('a forged torch')\n")
    command = ["python", "src", "check_night", "HEAD~1", "--seeds", "2", "--bytes", "500"]

    done = workspace.run(*command, check=False, PYTHONPATH=str(tmp_path))

    assert done.returncode == 0, done.stderr
    assert re.search(r"test: \d\.\d{4} \(base\) → \d\.\d{4} \(HEAD\) bits per byte: better", done.stdout)
    assert re.search(r"500 bytes of this text came back from \d+: \d\.\d{4} bits per byte", done.stdout)
    looks = (workspace.folder / "test_reads.csv").read_text().splitlines()[1:]
    assert len(looks) == 4
    commits = workspace.run("git", "log", "--format=%H", "start").stdout.split()
    assert {look.split(",")[0] for look in looks} == set(commits[:2])


@pytest.mark.parametrize(
    ("head", "came_back", "status", "said"),
    [
        (1.9, True, 0, "bits per byte: better"),
        (2.1, True, 1, "bits per byte: not better"),
        (1.9, False, 1, "did NOT come back"),
    ],
)
def test_a_result_is_confirmed_if_it_is_better_and_its_text_came_back(
    workspace, monkeypatch, capsys, head, came_back, status, said
):
    scores = {"The base": 2.0, "A higher learning rate": head}

    def score(clone, commit, seed):
        return scores[commit.subject] + 0.01 * seed + 0.001 * np.sin(seed * scores[commit.subject])

    monkeypatch.setattr(check_night, "clean_clone", contextlib.nullcontext)
    monkeypatch.setattr(check_night, "train_and_score", score)
    monkeypatch.setattr(check_night, "compress_test_text", lambda clone, size: Compressed(size, 100, came_back))

    assert main(["HEAD~1"]) == status

    assert said in capsys.readouterr().out


def test_what_is_not_committed_is_not_checked(workspace, capsys):
    workspace.change(**{"train.peak_lr": 0.02})

    refused(main(["HEAD~1"]), capsys.readouterr().err, 2, "the files differ from HEAD")


def test_a_night_that_changed_nothing_is_refused(workspace, capsys):
    refused(main(["HEAD"]), capsys.readouterr().err, 2, "nothing differs between HEAD and HEAD")


def test_a_changed_evaluation_is_refused(workspace, capsys):
    path = workspace.folder / "src/eval.py"
    path.write_text(path.read_text() + "# forged\n")
    workspace.commit("Forged")

    refused(main(["HEAD~1"]), capsys.readouterr().err, 4, "src/eval.py differs from")
