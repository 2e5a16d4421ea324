"""A little of the programs signal_moments.py, concurrency.py and long_life.py, and what they must notice."""

import hashlib
import re
import subprocess

import concurrency
import long_life
import numpy as np
import pytest
import signal_moments

from support import ROOT
from support.train_cases import wait_for
from support.workspace import Workspace


def run_of(memory_mib, handles, files):
    """Return 200 samples of a run as `watch` gives them."""
    columns = [np.broadcast_to(values, 200) for values in (memory_mib, handles, files)]
    return np.stack(columns, axis=1).astype(float)


def test_a_flat_run_passes():
    noise = np.random.default_rng(0).normal(300, 1, 200)
    assert abs(long_life.growth(run_of(noise, 30, 9), 50_000)["MiB per 10,000 steps"]) < 1


@pytest.mark.parametrize(
    "samples",
    [
        run_of(np.linspace(300, 350, 200), 30, 9),
        run_of(300, np.arange(200), 9),
        run_of(300, 30, np.arange(200)),
    ],
)
def test_memory_handles_and_files_that_grow_are_noticed(samples):
    with pytest.raises(AssertionError):
        long_life.growth(samples, 50_000)


@pytest.mark.parametrize(
    ("lock", "is_torn"),
    [
        ("stages:\n  a: {cmd: x}\n  b: {cmd: y}\n", False),
        ("stages:\n  a: {cmd: x}\n", False),
        ("", True),
        ("stages:\n", True),
        ("stages:\n  a: {cmd:", True),
        ("stages:\n  b: {cmd: y}\n", True),
        ("stages:\n  a: {cmd: x}\n  b: {cmd: y}", True),
    ],
)
def test_a_lock_file_that_lost_a_part_is_noticed(lock, is_torn):
    assert signal_moments.is_torn(lock, {"a": {"cmd": "x"}}) is is_torn


@pytest.mark.slow
def test_one_command_recovers_after_each_of_three_signals(monkeypatch):
    recorded = {}
    monkeypatch.setattr(signal_moments, "record", lambda name, figures, started: recorded.update(figures))
    assert signal_moments.main(["--moments", "3", "--stages", "resolve"]) == 0
    assert recorded["lost or wrong"] == 0 and recorded["moments"]


def test_a_damaged_object_of_the_cache_is_noticed(tmp_path):
    for content, name in ((b"whole", hashlib.md5(b"whole").hexdigest()), (b"[]", hashlib.md5(b"{}").hexdigest())):
        path = tmp_path / "files" / "md5" / name[:2] / f"{name[2:]}.dir"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert concurrency.damaged_objects(tmp_path) == [str(path)]


@pytest.mark.slow
def test_the_commands_of_the_page_bring_back_what_an_experiment_stashed(finished, tmp_path):
    """Killed while it has the parameters of the experiment in params.yaml."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    (commands,) = re.findall(r"^```bash parse\n(git restore .*?)^```", page, re.M | re.S)
    workspace = Workspace(tmp_path / "ws", finished)
    workspace.commit()
    workspace.change(**{"train.seed": 7})
    mine = (workspace.folder / "params.yaml").read_text()
    process = subprocess.Popen(
        ["dvc", "exp", "run", "--queue", "-S", "train.seed=8"], cwd=workspace.folder, env=workspace.environment
    )
    wait_for(lambda: "seed: 8" in (workspace.folder / "params.yaml").read_text(), 60)
    process.kill()
    process.wait()
    for command in commands.splitlines():
        workspace.run(*command.partition("  #")[0].split())
    assert (workspace.folder / "params.yaml").read_text() == mine
    assert workspace.run("git", "status", "--porcelain").stdout.split() == ["M", "params.yaml"]
    assert workspace.run("git", "branch", "--show-current").stdout == "main\n"


@pytest.mark.slow
def test_experiments_beside_each_other_have_the_results_of_one_at_a_time(monkeypatch):
    recorded = {}
    monkeypatch.setattr(concurrency, "record", lambda name, figures, started: recorded.update(figures))
    assert concurrency.main(["--minutes", "1"]) == 0
    assert recorded["experiments"] and recorded["lost or wrong"] == 0
