"""The commands that the pages give for DVC, run on a small pipeline of one stage as they are written."""

import os
import re
import signal

import pytest

from support import ROOT
from support.process import started, wait_for
from support.workspace import Workspace

PRESET = "  mine: {kind: bpe, vocab_size: 300, pretokenizer: gpt2}\n"
STAGE = """
import json, pathlib, time, yaml
seed = yaml.safe_load(open("params.yaml"))["seed"]
pathlib.Path("metrics/train.json").write_text(json.dumps({"seed": seed}))
while seed == 9:
    time.sleep(1)
pathlib.Path("plots/training.csv").write_text(f"step\\n{seed}\\n")
pathlib.Path("data/models").write_text(f"weights of {seed}")
"""
PIPELINE = """
stages:
  train:
    cmd: python work.py
    params: [seed]
    deps: [work.py]
    outs: [data/models]
    metrics: [metrics/train.json: {cache: false}]
    plots: [plots/training.csv: {cache: false}]
"""


def commands_of(page: str, pattern: str) -> list[str]:
    """Return the lines of the first block of a page that begins with the pattern, without their comments."""
    text = (ROOT / page).read_text()
    block = re.search(rf"^```bash \w+\n((?:{pattern}).*?)^```", text, re.M | re.S)[1]
    return [line.partition("  #")[0].strip() for line in block.splitlines()]


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    """Make a repository with a finished run of one stage that has this project's files, and a preset not committed."""
    workspace = Workspace.__new__(Workspace)
    workspace.folder = tmp_path / "ws"
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    workspace.environment = os.environ | {"PATH": path}
    for folder in ("data", "metrics", "plots"):
        (workspace.folder / folder).mkdir(parents=True)
    files = {
        "work.py": STAGE,
        "dvc.yaml": PIPELINE,
        "params.yaml": "seed: 1\n",
        "presets.yaml": "tokenizers:\n",
        "sources.yaml": "sources:\n",
    }
    for name, content in files.items():
        (workspace.folder / name).write_text(content)
    workspace.run("git", "init", "-q", "-b", "main")
    workspace.run("dvc", "init", "-q")
    workspace.run("git", "config", "user.name", "t")
    workspace.run("git", "config", "user.email", "t@localhost")
    workspace.run("dvc", "repro", "-q")
    workspace.commit()
    with open(workspace.folder / "presets.yaml", "a") as file:
        file.write(PRESET)
    return workspace


def follow(workspace: Workspace, commands: list[str]) -> None:
    for command in commands:
        workspace.run("bash", "-euc", command)


def check_that_the_first_run_is_back(workspace: Workspace, *changes: str) -> None:
    status = workspace.run("git", "status", "--porcelain", "--branch").stdout
    assert status.splitlines() == ["## main", *changes]
    assert PRESET in (workspace.folder / "presets.yaml").read_text()
    assert (workspace.folder / "data" / "models").read_text() == "weights of 1"
    assert "up to date" in workspace.run("dvc", "status").stdout


def test_the_files_come_back_after_an_experiment_was_killed(workspace):
    command = ["dvc", "exp", "run", "-S", "seed=9", "-n", "killed"]
    process = started(*command, cwd=workspace.folder, env=workspace.environment)
    metrics = workspace.folder / "metrics" / "train.json"
    wait_for(lambda: metrics.exists() and "9" in metrics.read_text())
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "## HEAD (no branch)" in workspace.run("git", "status", "--porcelain", "--branch").stdout

    follow(workspace, commands_of("docs/resume.md", "git switch"))

    check_that_the_first_run_is_back(workspace, " M presets.yaml")


def test_a_merge_of_two_branches_that_both_ran_ends_with_one_run(workspace):
    """Only what a run writes has conflicts."""
    workspace.run("git", "restore", "presets.yaml")

    # The other branch has another seed.
    workspace.run("git", "switch", "-qc", "other")
    (workspace.folder / "params.yaml").write_text("seed: 2\n")
    workspace.run("dvc", "repro", "-q")
    workspace.commit("other")

    # Ours has other code.
    workspace.run("git", "switch", "-q", "main")
    (workspace.folder / "work.py").write_text(STAGE.replace('{"seed": seed}', '{"seed": seed + 10}'))
    workspace.run("dvc", "repro", "-q")
    workspace.commit("ours")

    merge = workspace.run("git", "merge", "other", check=False)
    assert "conflict in dvc.lock" in merge.stdout
    workspace.environment["GIT_EDITOR"] = "true"

    follow(workspace, commands_of("docs/resume.md", "git checkout --ours"))

    assert workspace.run("git", "status", "--porcelain").stdout == ""
    assert (workspace.folder / "metrics" / "train.json").read_text() == '{"seed": 12}'
    assert "up to date" in workspace.run("dvc", "status").stdout


@pytest.mark.slow
def test_the_wait_for_a_queue_ends_also_after_a_stop_without_a_worker(workspace):
    """The stop ends the next worker after its first runs; the page says to start again then."""
    queue, *_, start, status = commands_of("docs/experiments.md", "dvc exp run --queue")
    (wait,) = commands_of("docs/experiments.md", "until dvc queue")
    follow(workspace, ["dvc queue stop", queue.replace("train.seed", "seed")])

    follow(workspace, [start])
    after_stop = workspace.run("bash", "-euc", status).stdout
    follow(workspace, [start])
    at_the_end = workspace.run("bash", "-euc", status).stdout

    assert "0 active, 0 idle" in after_stop
    assert at_the_end.count("Success") == 5
    follow(workspace, [wait])
