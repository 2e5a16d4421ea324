"""`python src judge`: what a candidate may not change, and a night of real runs that are scored by the base."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evidence.judge.judgements import columns
from evidence.judge.losses import read_losses
from evidence.judge.repository import commit_of_workspace, read_commit, reject_changed
from lm.core.errors import IntegrityError
from lm.core.params import read_yaml
from support import ROOT
from support.refusal import refused
from support.workspace import Workspace
from tools.judge.cli import DECIDES_NOTHING, MAY_CHANGE, SCORES, main
from tools.judge.run import OF_A_SEED, OF_ALL_SEEDS, commands_of, reject_other_run


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Workspace:
    """A workspace with two commits: a base, and a larger weight decay."""
    workspace = Workspace(tmp_path_factory.mktemp("judge"))
    workspace.make_small()
    workspace.commit("The base")
    workspace.change(**{"train.weight_decay": 0.2})
    workspace.commit("More decay")
    return workspace


@pytest.fixture
def workspace(repository, monkeypatch) -> Workspace:
    """The same, as it was committed, as the working directory."""
    monkeypatch.chdir(repository.folder)
    repository.run("git", "reset", "--quiet", "--hard")
    repository.run("git", "clean", "--quiet", "-fd")
    return repository


# What decides how a model is scored is that of the base.

FORGED = [
    "dvc.yaml",
    "sources.yaml",
    "runtime.yaml",
    "Makefile",
    "requirements/bits.txt",
    ".dvc/config",
    "src/numpy.py",
    "src/fetch.py",
    "src/tokenize_split.py",
    "src/audit.py",
    "src/eval.py",
    "src/__main__.py",
    "src/lm/__init__.py",
    "src/lm/core/files.py",
    "src/lm/text/splits.py",
    "src/lm/tokens/windows.py",
    "src/lm/evaluate/scoring.py",
    "src/lm/model/score.py",
    "src/lm/model/causality.py",
    "src/evidence/intervals.py",
    "src/tools/judge/run.py",
    "extras/compress/codec.py",
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
    for path in ("src/train.py", "src/make_tokenizer.py", "src/lm/train/step.py", "src/lm/model/gemma3.py"):
        file = workspace.folder / path
        file.write_text(file.read_text() + "# better\n")
    (workspace.folder / "src/lm/model/new.py").write_text("# a new part\n")

    base = read_commit("HEAD~1", DECIDES_NOTHING)
    reject_changed(base, commit_of_workspace(DECIDES_NOTHING), MAY_CHANGE, SCORES)


def test_pages_and_tests_decide_no_run(workspace, capsys):
    for path in ("README.md", "docs/data.md", "tests/conftest.py", "metrics/eval.json"):
        (workspace.folder / path).write_text("changed\n")

    refused(main(["HEAD"]), capsys.readouterr().err, 2, "nothing differs from")


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

    status = main(["HEAD~1", "--json"])

    printed = capsys.readouterr()
    refused(status, printed.err, 2, said)
    document = json.loads(printed.out)
    assert (document["answer"], document["exit_status"]) == ("none", 2)
    assert said in document["reason"]


# A run.


def test_each_command_of_the_pipeline_runs_once_and_data_is_made_once():
    pipeline = read_yaml(ROOT / "dvc.yaml")

    of_all_seeds = commands_of(OF_ALL_SEEDS, pipeline)
    of_a_seed = commands_of(OF_A_SEED, pipeline)

    programs = [command.split()[1] for command in of_all_seeds]
    tokenize = "src/tokenize_split.py"
    assert programs == ["src", "src/fetch.py", "src/make_tokenizer.py", tokenize, tokenize, "src/audit.py"]
    assert [command.split()[1] for command in of_a_seed] == ["src", "src/train.py", "src/eval.py"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The files of a run, in the working directory, as a function of what they say."""
    monkeypatch.chdir(tmp_path)
    Path("metrics").mkdir()
    Path("data/processed_datasets").mkdir(parents=True)

    def write(tokens_seen: int, unknown_tokens: int) -> None:
        sidecar = {"tokens": 100, "documents": 2, "round_trip": {"unknown_tokens": unknown_tokens}}
        sidecar["round_trip"]["changed_documents"] = 0
        Path("metrics/train.json").write_text(json.dumps({"tokens_seen": tokens_seen}))
        Path("data/processed_datasets/validation.json").write_text(json.dumps(sidecar))

    return write


def test_a_run_of_whole_steps_within_its_budget_counts(results):
    results(tokens_seen=960, unknown_tokens=0)

    reject_other_run(max_tokens=1000, batch_tokens=64)


@pytest.mark.parametrize(
    ("tokens_seen", "unknown_tokens", "said"),
    [
        (1001, 0, "tokens_seen is 1001; it must be train.max_tokens, 1000"),
        (936, 0, "tokens_seen is 936"),
        (960, 1, "lossy tokenizer"),
    ],
)
def test_a_run_of_another_length_or_with_a_lossy_tokenizer_does_not(results, tokens_seen, unknown_tokens, said):
    results(tokens_seen, unknown_tokens)

    with pytest.raises(IntegrityError, match=said):
        reject_other_run(max_tokens=1000, batch_tokens=64)


# A night.

# The model adds the embedding of the next token to each.
LEAKY = (r"(x = self\.math\.embedding\(.*\n)", r"\1        x = x + x.roll(-1, 1)\n")


def kept_scores(folder: Path) -> list[float]:
    """Return the bits per byte of the runs with seed 1 that judge keeps."""
    return [read_losses(path).bits_per_byte for path in folder.glob(".git/evidence/losses/*/1-*.csv")]


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
    command = [sys.executable, "src", "judge", "HEAD", "--json"]

    # Stop the first call after its first seed.
    process = subprocess.Popen(
        command, cwd=tmp_path, env=workspace.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "with seed 2" in line:
            break
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    output, error = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert output == ""
    assert "Traceback" not in error

    # The next call goes on with the second seed, and one after it has nothing to run.
    first = workspace.run(*command, check=False)
    second = workspace.run(*command, check=False)
    document = json.loads(first.stdout)
    assert document["pairs_mean"] < 0
    assert set(document) == {"schema", "reason", *columns()}
    assert first.returncode == {"keep": 0, "reject": 1, "undecided": 3}[document["answer"]]
    assert first.stderr.count("\nrunning") + first.stderr.startswith("running") == 5 - 1 + 2
    assert (second.returncode, second.stdout) == (first.returncode, first.stdout)
    assert "running" not in second.stderr

    # The losses are those that the stages give, and the workspace is as it was.
    workspace.run_stages()
    honest = json.loads((tmp_path / "metrics/eval.json").read_text())["bits_per_byte"]
    assert any(score == pytest.approx(honest, rel=1e-9) for score in kept_scores(tmp_path))
    workspace.run("git", "restore", "metrics", "plots")
    after = workspace.run("git", "status", "--porcelain").stdout.splitlines()
    assert set(after) - set(before.splitlines()) == {"?? judgements.csv"}

    # A model that sees the next token has no judgement.
    model = tmp_path / "src/lm/model/gemma3.py"
    leaky, count = re.subn(*LEAKY, model.read_text(), count=1)
    assert count == 1
    model.write_text(leaky)
    crashed = workspace.run(*command, check=False)
    assert crashed.returncode == 6
    assert json.loads(crashed.stdout)["answer"] == "crashed"
    assert "later" in crashed.stderr


def test_the_page_has_a_row_for_each_column():
    page = (ROOT / "docs/search.md").read_text()
    start = page.index("| column, and key of `--json`")
    documented = re.findall(r"^\| `(\w+)` \|", page[start : page.index("\n\n", start)], re.M)

    assert documented == columns()
