"""`python src judge`: what a candidate may not change, and a night of real runs that are scored by the base."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evidence.errors import RunFailed
from evidence.judge import commits
from evidence.judge.commits import commit_of_workspace, read_commit, reject_changed
from evidence.table import read_run
from lm.core.errors import IntegrityError
from lm.core.files import write_json
from lm.core.git import OF_A_HOOK
from lm.core.params import read_yaml
from support import ROOT
from support.process import CAP_S, started, wait_for
from support.refusal import refused
from support.workspace import Workspace
from tools.judge.cli import DECIDES_NOTHING, MAY_CHANGE, SCORES, files_outside_git, main
from tools.judge.run import (
    reject_other_run,
    set_seed,
    write_losses,
)
from tools.record.paths import DOCUMENT_LOSSES, TRAIN_METRICS, VALIDATION_SIDECAR


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Workspace:
    """A workspace with two commits: a base, and a larger weight decay."""
    workspace = Workspace(tmp_path_factory.mktemp("judge"))
    workspace.make_small()
    workspace.commit("The base")
    workspace.change(**{"train.weight_decay": 0.2})
    workspace.commit("More decay")
    workspace.run("git", "tag", "start")
    return workspace


@pytest.fixture
def workspace(repository, monkeypatch) -> Workspace:
    """The same, as it was committed, as the working directory."""
    monkeypatch.chdir(repository.folder)
    repository.go_back("start")
    return repository


# What decides how a model is scored is that of the base.

FORGED = [
    "dvc.yaml",
    "requirements/bits.txt",
    "src/numpy.py",
    "src/eval.py",
    "src/lm/__init__.py",
    "src/lm/exact/functions.py",
    "src/lm/text/splits.py",
    "src/lm/model/score.py",
    "src/lm/model/causality.py",
    "src/evidence/intervals.py",
    "src/tools/judge/run.py",
]


def test_a_changed_file_that_scores_or_prepares_text_is_refused(workspace, capsys):
    for path in FORGED:
        file = workspace.folder / path
        before = file.read_text() if file.exists() else None
        file.write_text((before or "") + "# forged\n")

        status = main(["HEAD~1"])

        refused(status, capsys.readouterr().err, 4, f"{path} differs from", "judge from a commit that has the new file")
        file.unlink() if before is None else file.write_text(before)


def test_code_that_trains_may_change(workspace):
    for path in ("src/train.py", "src/lm/model/gemma3.py", "src/lm/model/new.py"):
        with open(workspace.folder / path, "a") as file:
            file.write("# better\n")

    base = read_commit("HEAD~1", DECIDES_NOTHING)
    reject_changed(base, commit_of_workspace(DECIDES_NOTHING), MAY_CHANGE, SCORES)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train.seed", 7, "train.seed is 1 in the base and 7 here"),
        ("train.max_tokens", 20480, "with --any-budget it counts"),
        ("train.init_from", "other", "both must start from the same weights"),
        ("data.source", "local", "both must be scored on the same text"),
        ("eval.stride_fraction", 1.0, "both must be scored alike"),
    ],
)
def test_parameters_that_are_no_gain_of_training_are_refused(workspace, capsys, name, value, said):
    workspace.change(**{name: value})

    status = main(["HEAD~1"])

    refused(status, capsys.readouterr().err, 2, said)


def test_variables_of_a_hook_are_those_that_the_rest_of_the_project_knows():
    assert commits.OF_A_HOOK == OF_A_HOOK


# What the command hands on.


def test_seeds_count_from_that_of_the_parameters_and_options_reach_the_judgement(workspace, monkeypatch, capsys):
    workspace.change(**{"train.seed": 7})
    workspace.commit("Another seed")
    workspace.change(**{"train.max_tokens": 20480})

    def judge_candidate(runner, base, candidate, *options):
        raise RunFailed(f"{base.subject}, {candidate.subject}, {runner.command[1:]}, {options}, {any(runner.inputs)}")

    monkeypatch.setattr("tools.judge.cli.judge_candidate", judge_candidate)

    assert main(["HEAD", "--any-budget", "--least-gain", "0.001", "--seeds", "5"]) == 5
    said = "Another seed, uncommitted: params.yaml, ('src', 'judge_run'), (5, 7, 0.001), True"
    assert said in capsys.readouterr().err


def test_files_of_the_user_outside_git_decide_a_run(tmp_path, monkeypatch):
    """A parameter names a folder or one file."""
    monkeypatch.chdir(tmp_path)
    for name in ("text/a/1.txt", "text/2.txt", "tokenizer.json", "other.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)

    params = {
        "local.path": "text",
        "train.init_from": "missing",
        "tokenizer.path": "tokenizer.json",
        "data.source": "x",
    }

    assert list(map(str, files_outside_git(params))) == ["text/2.txt", "text/a/1.txt", "tokenizer.json"]


# A run.


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """An empty worktree with the parameters, as the working directory; its repository is `repository`."""
    folder = tmp_path / "worktree"
    folder.mkdir()
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(folder)
    return folder


def test_a_run_has_its_seed(clone):
    before = read_yaml("params.yaml")

    set_seed(5)

    assert read_yaml("params.yaml") == before | {"train": before["train"] | {"seed": 5}}


def test_losses_are_named_by_their_text(clone):
    write_json(VALIDATION_SIDECAR, {"source": {"text_sha256": "0123456789abcdef0123"}})
    DOCUMENT_LOSSES.parent.mkdir()
    columns = {"document": [0, 1], "nats": [0.1, 2 / 3], "utf8_bytes": [3, 4], "tokens": [1, 1]}
    pq.write_table(pa.table(columns), DOCUMENT_LOSSES)

    write_losses(Path("losses.csv"))

    losses = read_run(Path("losses.csv"))
    assert losses.documents == ["0123456789abcdef/0", "0123456789abcdef/1"]
    assert losses.values * np.log(2) == pytest.approx([0.1, 2 / 3])


@pytest.mark.parametrize(
    ("tokens_seen", "unknown_tokens", "said"),
    [(1001, 0, "tokens_seen is 1001"), (936, 0, "tokens_seen is 936"), (960, 1, "lossy tokenizer"), (960, 0, None)],
)
def test_a_run_of_another_length_or_with_a_lossy_tokenizer_does_not_count(clone, tokens_seen, unknown_tokens, said):
    """Whole steps of 64 tokens within the budget count."""
    round_trip = {"unknown_tokens": unknown_tokens, "changed_documents": 0}
    write_json(TRAIN_METRICS, {"tokens_seen": tokens_seen})
    write_json(VALIDATION_SIDECAR, {"tokens": 100, "documents": 2, "round_trip": round_trip})

    with pytest.raises(IntegrityError, match=said) if said else contextlib.nullcontext():
        reject_other_run(max_tokens=1000, batch_tokens=64)


# A night.


@pytest.mark.slow
def test_a_night_of_real_runs(tmp_path):
    """The text lies in data/local, which Git ignores. The first call is stopped while it trains."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    workspace.commit()
    workspace.run("git", "rm", "--cached", "--quiet", "data/local/small.jsonl")
    workspace.run("git", "commit", "--quiet", "--message", "The text is no part of Git")
    workspace.change(**{"train.peak_lr": 0.03})
    before = workspace.run("git", "status", "--porcelain").stdout
    command = [sys.executable, "src", "judge", "HEAD", "--seeds", "2", "--json"]

    # Stop the first call after its first seed.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = started(*command, cwd=tmp_path, env=workspace.environment, text=True, **pipes)
    for line in process.stderr:
        if "with seed 2" in line:
            break
    wait_for(psutil.Process(process.pid).children)
    process.send_signal(signal.SIGTERM)
    output, error = process.communicate(timeout=CAP_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert output == ""
    assert "Traceback" not in error

    # The next call goes on with the second seed.
    done = workspace.run(*command, check=False)
    document = json.loads(done.stdout)
    assert document["pairs_mean"] < 0
    assert done.returncode == {"reject": 1, "undecided": 3}[document["answer"]]
    assert done.stderr.count("\nrunning") + done.stderr.startswith("running") == 5 - 1 + 2

    # The losses are those that the stages give, and the workspace is as it was.
    workspace.run_stages()
    honest = json.loads((tmp_path / "metrics/eval.json").read_text())["bits_per_byte"]
    kept = [read_run(path).score for path in tmp_path.glob(".git/evidence/losses/*/1.csv")]
    assert any(score == pytest.approx(honest, rel=1e-9) for score in kept)
    workspace.run("git", "restore", "metrics", "plots")
    after = workspace.run("git", "status", "--porcelain").stdout.splitlines()
    assert set(after) - set(before.splitlines()) == {"?? judgements.csv"}

    # A model that adds the embedding of the next token to each has no judgement.
    model = tmp_path / "src/lm/model/gemma3.py"
    honest_code = model.read_text()
    leaky = re.sub(r"(x = self\.math\.embedding\(.*\n)", r"\1        x = x + x.roll(-1, 1)\n", honest_code, count=1)
    assert leaky != honest_code
    model.write_text(leaky)
    crashed = workspace.run(*command, check=False)
    assert crashed.returncode == 6
    assert json.loads(crashed.stdout)["answer"] == "crashed"
    assert "the model sees the future of this text" in crashed.stderr
