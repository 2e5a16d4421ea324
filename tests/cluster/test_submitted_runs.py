"""Run `python src submit` on two hosts of ssh and on Slurm, with a Git remote on disk and an S3 server of its own."""

import json
import logging
import os
import re
import sys
import time
from pathlib import Path

import boto3
import dvc.api
import pytest
from moto.server import ThreadedMotoServer

from support import slurm, sshd
from support.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sshd.SSHD is None, reason="needs openssh-server")]

# A pipeline of one stage that takes a second, instead of the ten of dvc.yaml.
PIPELINE = """\
stages:
  square:
    cmd: python square.py
    params: [number]
    deps: [square.py]
    outs: [model]
    metrics:
    - metrics/square.json:
        cache: false
"""
SQUARE = """\
import json, pathlib, time, yaml
number = yaml.safe_load(open("params.yaml"))["number"]
time.sleep(1 if number < 100 else number)
assert number != 13, "this number is refused"
pathlib.Path("model").write_text(f"model of {number}")
pathlib.Path("metrics/square.json").write_text(json.dumps({"square": number * number}))
"""
FAST = ("--heartbeat", "2", "--lost-after", "12")


@pytest.fixture(scope="module")
def s3():
    """Start an S3 server with an empty bucket; return the environment that leads to it."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys).create_bucket(Bucket="our-bucket")
    yield {
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_EC2_METADATA_DISABLED": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    server.stop()


class Home(Workspace):
    """The repository at home, with its Git remote and hosts."""

    def share(self, remote: Path, s3: dict[str, str], name: str) -> None:
        """Commit the workspace and push it to a bare Git repository; use a folder of the bucket as DVC's remote."""
        self.remote, self.environment = remote, self.environment | s3
        self.run("dvc", "remote", "add", "--default", "team", f"s3://our-bucket/{name}")
        self.commit()
        self.run("git", "init", "-q", "--bare", "-b", "main", str(remote))
        self.run("git", "remote", "add", "origin", str(remote))
        self.run("git", "push", "-q", "origin", "main")

    def clone(self, folder: Path) -> Path:
        """Make the clone of a host, with the Python that runs the tests."""
        self.run("git", "clone", "-q", str(self.remote), str(folder))
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        return folder

    def add_hosts(self, hosts: list[sshd.Host]) -> None:
        """Make a clone on each host, and let `ssh` know them."""
        path = sshd.use_hosts(hosts, self.folder.parent / "bin")
        self.environment["PATH"] = f"{path}{os.pathsep}{self.environment['PATH']}"
        for host in hosts:
            self.clone(host.work / "lm")

    def submit(self, *arguments: str) -> str:
        """Run `python src submit` and return what it printed."""
        return self.run("python", "src", "submit", *arguments).stdout

    def states(self) -> dict[str, str]:
        """Return the state of every experiment that was sent."""
        return dict(line.split()[:2] for line in self.submit("status", "--lost-after", "12").splitlines())

    def wait(self, condition, timeout_s: float) -> dict[str, str]:
        """Return the states as soon as they satisfy a condition."""
        end = time.monotonic() + timeout_s
        while not condition(states := self.states()):
            logs = [path.read_text() for path in self.folder.parent.glob("*/work/*/.submit/workers.log")]
            assert time.monotonic() < end, "\n".join([str(states), *logs])
            time.sleep(1)
        return states

    def read(self, path: str, name: str) -> str:
        """Return a file of an experiment, as it is at home."""
        return dvc.api.read(path, repo=str(self.folder), rev=name, remote="team")


@pytest.fixture
def hosts(s3, tmp_path):
    """Start two hosts of ssh."""
    hosts = [sshd.Host(tmp_path / name, s3) for name in ("host0", "host1")]
    yield hosts
    for host in hosts:
        host.kill()


@pytest.fixture
def home(s3, hosts, tmp_path):
    """Return a repository whose pipeline is a single stage, with a clone on each host."""
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home")
    (home.folder / "dvc.yaml").write_text(PIPELINE)
    (home.folder / "square.py").write_text(SQUARE)
    with open(home.folder / "params.yaml", "a") as params:
        params.write("number: 0\n")
    home.share(tmp_path / "remote.git", s3, tmp_path.name)
    home.add_hosts(hosts)
    return home


def test_twenty_experiments_come_home_though_one_of_two_hosts_is_killed(home, hosts):
    home.run("dvc", "exp", "run", "--queue", "-n", "n", "-S", "number=range(20,40)")
    names = [f"n-{i}" for i in range(1, 21)]
    assert home.submit("to", *map(target, hosts), "--wait", *FAST).startswith("20 experiments sent")
    assert "n-1" not in home.run("dvc", "queue", "status").stdout
    # Kill a host that has finished some experiments and runs another one.
    home.wait(lambda states: [*states.values()].count("done") >= 4 and is_running(hosts[0]), 120)
    hosts[0].kill()
    home.wait(lambda states: set(states.values()) == {"done"}, 600)
    # Every experiment is at home under its name, with the metrics and the outputs of a local run.
    for number, name in zip(range(20, 40), names, strict=True):
        assert json.loads(home.read("metrics/square.json", name)) == {"square": number**2}
        assert home.read("model", name) == f"model of {number}"
    shown = json.loads(home.run("dvc", "exp", "show", "--json").stdout)
    assert {found["name"] for base in shown for found in base["experiments"] or []} == set(names)
    assert home.run("git", "status", "--porcelain").stdout == ""


def test_training_on_a_killed_host_goes_on_elsewhere_from_its_last_saved_state(s3, hosts, finished, tmp_path):
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home", finished)
    runtime = home.folder / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("checkpoint_every_s: 30", "checkpoint_every_s: 1"))
    home.share(tmp_path / "remote.git", s3, tmp_path.name)
    home.run("dvc", "push", "--run-cache")
    home.add_hosts(hosts)
    longer = ("-S", "train.max_tokens=204800", "-S", "train.eval_every_tokens=51200")
    home.run("dvc", "exp", "run", "--queue", "-n", "long", *longer)
    times = ("--heartbeat", "1", "--lost-after", "10", "--save-every", "1")
    home.submit("to", target(hosts[0]), *times)
    # Kill the host once a state of the run is on the DVC remote.
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "endpoint_url": s3["AWS_ENDPOINT_URL"]}
    bucket = boto3.resource("s3", region_name="us-east-1", **keys).Bucket("our-bucket")
    states = f"{tmp_path.name}/submit/"
    end = time.monotonic() + 120
    while not any(
        "/state-" in found.key and found.key.endswith(".json") for found in bucket.objects.filter(Prefix=states)
    ):
        assert time.monotonic() < end, home.submit("logs", "long")
    hosts[0].kill()
    home.submit("to", target(hosts[1]), "--wait", *times)
    home.wait(lambda states: states == {"long": "done"}, 240)
    log = home.submit("logs", "long")
    assert re.search(r"resumed at step [1-9]", log) and "Running stage 'fetch'" not in log
    assert [*bucket.objects.filter(Prefix=states)] == []
    # A local run that nothing interrupts gives the same bits.
    home.run("dvc", "exp", "run", "--temp", "-n", "local", *longer)
    for path in ("metrics/train.json", "metrics/eval.json", "plots/validation.csv"):
        assert home.read(path, "long") == home.read(path, "local")


@pytest.mark.skipif(bool(slurm.missing_commands()), reason="needs Slurm")
def test_experiments_run_as_jobs_of_slurm(home, tmp_path):
    folder = home.clone(tmp_path / "shared")
    (tmp_path / "slurm").mkdir()
    home.run("dvc", "exp", "run", "--queue", "-n", "n", "-S", "number=12,13,14,600")
    with slurm.running_slurm(tmp_path / "slurm") as running:
        path = f"{Path(sys.executable).parent}{os.pathsep}{running.environment['PATH']}"
        home.environment |= {"SLURM_CONF": running.environment["SLURM_CONF"], "PATH": path}
        printed = home.submit("to", f"slurm:{folder}", "-j", "2", "--option", "ntasks=1", *FAST)
        jobs = re.findall(r"^slurm: job (\d+)$", printed, re.M)
        # Each worker goes on after an experiment that failed; a cancelled one ends.
        home.wait(lambda states: states["n-4"] == "running" and "queued" not in states.values(), 240)
        home.submit("cancel", "n-4")
        assert [running.wait(job, "COMPLETED", "FAILED", timeout_s=120) for job in jobs] == ["COMPLETED"] * 2
    assert home.states() == {"n-1": "done", "n-2": "failed", "n-3": "done", "n-4": "cancelled"}
    assert "this number is refused" in home.submit("logs", "n-2")
    assert json.loads(home.read("metrics/square.json", "n-3")) == {"square": 196}
    refused = home.run("python", "src", "submit", "cancel", "n-1", check=False)
    assert refused.returncode == 2 and "n-1 is done, needed" in refused.stderr


def target(host: sshd.Host) -> str:
    """Return the clone on a host as the command names it."""
    return f"{host.name}:{host.work / 'lm'}"


def is_running(host) -> bool:
    """Return True if a stage or DVC runs in the clone of an experiment on the host."""
    return any("clone" in Path(process.cwd()).parts for process in host.processes())
