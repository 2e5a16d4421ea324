"""Run a sweep through the real queue of DVC and compare its runs."""

import json
import re
import time

import dvc.api
import pytest

from support.workspace import Workspace

TIMEOUT_S = 600


@pytest.fixture
def workspace(tmp_path):
    """Return a small repository whose text is tokenized and committed."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    workspace.change(**{"train.max_tokens": 2560, "train.eval_every_tokens": 1280})
    workspace.commit()
    workspace.repro("audit")
    workspace.commit()
    yield workspace
    workspace.run("dvc", "queue", "stop")


def finished_tasks(workspace: Workspace) -> dict[str, str]:
    """Wait until no task is queued or running; return name → Success or Failed."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        # The command can fail while a worker writes.
        output = workspace.run("dvc", "queue", "status", check=False).stdout
        states = dict(re.findall(r"^\w{7}\s+(\S+).*?(Queued|Running|Success|Failed)\s*$", output, re.M))
        if "Worker status" in output and not {"Queued", "Running"} & set(states.values()):
            return states
        time.sleep(5)
    raise AssertionError(f"tasks were still running after {TIMEOUT_S} s:\n{output}")


@pytest.mark.slow
def test_seeds_of_two_configurations_and_a_failure_go_through_the_queue(workspace):
    queue = ("dvc", "exp", "run", "--queue", "-S", "train.seed=range(1,3)", "-n")
    workspace.run(*queue, "base")
    workspace.run(*queue, "wider", "-S", "presets.yaml:models.micro.d_ff=64")
    workspace.run("dvc", "exp", "run", "--queue", "-n", "broken", "-S", "train.peak_lr=-1")
    workspace.run("dvc", "queue", "start", "-j", "2", OMP_NUM_THREADS="1")
    states = finished_tasks(workspace)
    names = ["base-1", "base-2", "wider-1", "wider-2"]
    assert states == {**dict.fromkeys(names, "Success"), "broken": "Failed"}
    assert "train.peak_lr is -1" in workspace.run("dvc", "queue", "logs", "broken").stdout
    for name in names:
        model = json.loads(dvc.api.read("data/models/model.json", repo=str(workspace.folder), rev=name))
        assert [segment["threads"] for segment in model["segments"]] == [1]
