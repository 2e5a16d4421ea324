"""`python src submit` with two clones in place of hosts, a folder as DVC's remote, and an `ssh` that runs here."""

import json
import os
import sys
import time
from pathlib import Path

import dvc.api
import psutil
import pytest

from support.workspace import Workspace

PIPELINE = """stages:
  square:
    cmd: python square.py
    deps: [square.py]
    params: [number]
    outs: [model]
    metrics: [metrics/square.json]
"""
SQUARE = """import json, pathlib, time, yaml
number = yaml.safe_load(open("params.yaml"))["number"]
time.sleep(4)
assert number != 13, "this number is refused"
pathlib.Path("model").write_text(f"model of {number}")
pathlib.Path("metrics/square.json").write_text(json.dumps({"square": number * number}))
"""


@pytest.fixture
def home(tmp_path):
    """A repository whose pipeline is a single stage, with a Git remote, a DVC remote and a clone on each host."""
    (tmp_path / "home").mkdir()
    home = Workspace(tmp_path / "home")
    (home.folder / "dvc.yaml").write_text(PIPELINE)
    (home.folder / "square.py").write_text(SQUARE)
    with open(home.folder / "params.yaml", "a") as params:
        params.write("number: 0\n")
    home.run("dvc", "remote", "add", "--default", "team", str(tmp_path / "team"))
    home.commit()
    home.run("git", "init", "-q", "--bare", "-b", "main", str(tmp_path / "remote.git"))
    home.run("git", "remote", "add", "origin", str(tmp_path / "remote.git"))
    home.run("git", "push", "-q", "origin", "HEAD:main")
    for name in ("host0", "host1"):
        home.run("git", "clone", "-q", str(tmp_path / "remote.git"), str(tmp_path / name))
        (tmp_path / name / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text('#!/bin/bash\nshift; exec bash -c "$*"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    home.environment["PATH"] = f"{tmp_path}/bin{os.pathsep}{home.environment['PATH']}"
    return home


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that run below a folder."""
    running = [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"]]
    return [p for p in running if Path(p.info["cwd"]).is_relative_to(folder)]


@pytest.mark.slow
def test_experiments_come_home_though_one_of_two_hosts_is_killed(home, tmp_path):
    def states() -> dict[str, str]:
        lines = home.run("python", "src", "submit", "status", "--lost-after", "8").stdout.splitlines()
        return dict(line.split()[:2] for line in lines)

    def wait(condition) -> None:
        end = time.monotonic() + 240
        while not condition(states()):
            assert time.monotonic() < end, (tmp_path / "host1/.submit/workers.log").read_text()
            time.sleep(1)

    hosts = [tmp_path / "host0", tmp_path / "host1"]
    home.run("dvc", "exp", "run", "--queue", "-n", "n", "-S", "number=12,13,14,15")
    targets = [f"{host.name}:{host}" for host in hosts]
    sent = home.run("python", "src", "submit", "to", *targets, "--wait", "--heartbeat", "1", "--lost-after", "8").stdout
    assert sent.startswith("4 experiments sent")
    # Kill a host while it runs an experiment.
    wait(lambda found: any("clone" in p.info["cwd"] for p in processes_in(hosts[0])))
    for process in processes_in(hosts[0]):
        process.kill()
    wait(lambda found: not {"queued", "running", "lost"} & {*found.values()})
    assert states() == {"n-1": "done", "n-2": "failed", "n-3": "done", "n-4": "done"}
    # Every result is at home under its name; the failed one has its log.
    for number, name in ((12, "n-1"), (14, "n-3"), (15, "n-4")):
        read = {path: dvc.api.read(path, repo=str(home.folder), rev=name) for path in ("metrics/square.json", "model")}
        assert json.loads(read["metrics/square.json"]) == {"square": number**2}
        assert read["model"] == f"model of {number}"
    assert "this number is refused" in home.run("python", "src", "submit", "logs", "n-2").stdout
    refused = home.run("python", "src", "submit", "cancel", "n-1", check=False)
    assert refused.returncode == 2 and "n-1 is done, needed" in refused.stderr
    assert home.run("git", "status", "--porcelain").stdout == ""
