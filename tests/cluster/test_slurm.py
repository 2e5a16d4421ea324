"""The documented jobs on a real Slurm of two nodes: each ends with the bytes of an undisturbed run."""

import os
import re
import shutil
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from support import ROOT
from support.slurm import NODES, free_ports
from support.train_cases import clear, make_training, results, undisturbed_results, wait_for

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "distributed.md").read_text()
(RECIPE,) = re.findall(r"^```bash parse\n(#!/bin/bash\n#SBATCH.*?)^```", PAGE, re.M | re.S)
SIZE = ["--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1"]  # of the job on each of the two nodes
HELD_AT = 5
HOLDING = f"env 'SABOTAGE=hold_at {HELD_AT}' python tests/support/rank_cases.py"  # waits there for the file `go`


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A small copy of the repository whose batch four ranks can divide."""
    workspace = make_training(tmp_path_factory.mktemp("training") / "ws")
    workspace.change(**{"train.micro_batch_tokens": 128})
    for name in ("train", "validation"):
        for suffix in (".bin", ".json"):
            shutil.copy(workspace.folder / f"{name}{suffix}", workspace.folder / "data/processed_datasets")
    (workspace.folder / ".venv").symlink_to(sys.prefix)
    return workspace


@pytest.fixture(scope="module")
def undisturbed(template):
    return undisturbed_results(template)


@pytest.fixture
def project(slurm, template, monkeypatch):
    """The copy as the working directory, without results."""
    monkeypatch.chdir(template.folder)
    clear()
    yield template.folder
    slurm.run("scancel", "--state=PENDING", "--partition=cpu")  # what a failed test has left
    slurm.run("scancel", "--state=RUNNING", "--partition=cpu")
    for pattern in ("held-*", "go", "slurm-*.out"):
        for path in Path().glob(pattern):
            path.unlink()


def submit(slurm, *options: str, program: str = HOLDING) -> str:
    """Submit the documented job, on a free port and on one machine, and return its number."""
    adapted = RECIPE.replace("29500", str(*free_ports(1)))
    adapted = adapted.replace("| head -n 1", "| head -n 1 | sed s/node./127.0.0.1/")
    Path("job.sh").write_text(adapted.replace("python src/train.py", program))
    return slurm.submit("job.sh", *SIZE, *options, folder=Path.cwd())


def printed(job: str) -> str:
    path = Path(f"slurm-{job}.out")
    return path.read_text() if path.exists() else ""


def hold(slurm, *options: str) -> str:
    """Submit a job, wait until its four ranks wait after a step, and return its number."""
    job = submit(slurm, *options)
    wait_for(lambda: len(list(Path().glob("held-?"))) == 4 or slurm.state(job) == "FAILED", 120)
    assert slurm.state(job) == "RUNNING", printed(job)
    return job


def start_soon(slurm, job: str) -> None:
    """Let a requeued job start when its nodes are idle; Slurm itself waits two minutes."""
    assert slurm.wait(job, "PENDING", "FAILED") == "PENDING", printed(job)
    wait_for(lambda: slurm.idle_nodes() == [*NODES], 100)  # on a busy machine a node answers late
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")


def assert_completed(slurm, job: str, undisturbed: dict[str, bytes], sentence: str) -> None:
    """Check that a job starts, prints a sentence and ends with the bytes of an undisturbed run."""
    slurm.wait(job, "RUNNING", "COMPLETED", "FAILED", timeout_s=200)
    assert slurm.wait(job, "COMPLETED", "FAILED", "PENDING") == "COMPLETED", printed(job)
    assert sentence in printed(job)
    assert results() == undisturbed


def test_two_nodes_of_two_ranks_give_the_bytes_of_one_process(slurm, project, undisturbed):
    job = submit(slurm, program="python src/train.py")
    assert_completed(slurm, job, undisturbed, "processes    4, 2 on this host")


def test_a_preempted_job_is_requeued_and_continues(slurm, project, undisturbed):
    job = hold(slurm)
    urgent = slurm.submit("--wrap=sleep 1", "--partition=urgent", "--nodes=2", "--exclusive", folder=project)
    wait_for(lambda: "stopping after this step" in printed(job))
    Path("go").touch()
    slurm.wait(urgent, "COMPLETED", timeout_s=200)
    start_soon(slurm, job)
    assert_completed(slurm, job, undisturbed, f"resumed at step {HELD_AT} from")


def test_a_job_whose_time_is_up_is_requeued_and_continues(slurm, project, undisturbed):
    job = hold(slurm, "--time=10", "--signal=TERM@30")
    end = (datetime.now() + timedelta(seconds=45)).isoformat(timespec="seconds")
    slurm.run("scontrol", "update", f"JobId={job}", f"EndTime={end}")  # a limit is at least a minute
    wait_for(lambda: "stopping after this step" in printed(job))
    Path("go").touch()
    start_soon(slurm, job)
    assert_completed(slurm, job, undisturbed, f"resumed at step {HELD_AT} from")


@pytest.mark.parametrize("node", NODES)
def test_a_job_whose_node_is_lost_is_requeued_and_continues(slurm, project, undisturbed, node):
    job = hold(slurm)
    slurm.kill(node)
    Path("go").touch()
    assert slurm.wait(job, "PENDING", "FAILED") == "PENDING", printed(job)
    slurm.start_node(node)
    # Slurm may end the job once more on the node that is back, so its two minutes are waited for.
    assert_completed(slurm, job, undisturbed, f"resumed at step {HELD_AT - 1} from")


def test_a_job_of_which_a_rank_is_killed_is_requeued_and_continues(slurm, project, undisturbed):
    job = hold(slurm)
    os.kill(int(Path("held-3").read_text()), signal.SIGKILL)
    Path("go").touch()
    start_soon(slurm, job)
    assert_completed(slurm, job, undisturbed, f"resumed at step {HELD_AT - 1} from")


def test_a_cancelled_job_saves_its_state_and_continues_only_when_submitted_again(slurm, project, undisturbed):
    job = hold(slurm)
    slurm.run("scancel", job)
    wait_for(lambda: "stopping after this step" in printed(job))
    Path("go").touch()
    wait_for(lambda: f"training stopped at step {HELD_AT} (SIGTERM)" in printed(job))
    wait_for(lambda: slurm.idle_nodes() == [*NODES])
    assert slurm.state(job) == "CANCELLED"
    assert_completed(slurm, submit(slurm), undisturbed, f"resumed at step {HELD_AT} from")
