"""Run `python src submit` on two hosts of ssh and on Slurm, with a Git remote on disk and an S3 server of its own."""

import json
import logging
import os
import sys
import time
from pathlib import Path

import boto3
import dvc.api
import pytest
from moto.server import ThreadedMotoServer

from support import sshd
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
time.sleep(1)
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
    """Return a small repository at home, with a clone on each host."""
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home")
    (home.folder / "dvc.yaml").write_text(PIPELINE)
    (home.folder / "square.py").write_text(SQUARE)
    with open(home.folder / "params.yaml", "a") as params:
        params.write("number: 0\n")
    home.share(tmp_path / "remote.git", s3, tmp_path.name)
    path = sshd.use_hosts(hosts, tmp_path / "bin")
    home.environment["PATH"] = f"{path}{os.pathsep}{home.environment['PATH']}"
    for host in hosts:
        home.clone(host.work / "lm")
    return home


def targets(hosts) -> list[str]:
    return [f"{host.name}:{host.work / 'lm'}" for host in hosts]


def test_twenty_experiments_come_home_though_one_of_two_hosts_is_killed(home, hosts):
    home.run("dvc", "exp", "run", "--queue", "-n", "n", "-S", "number=range(20,40)")
    names = [f"n-{i}" for i in range(1, 21)]
    assert home.submit("to", *targets(hosts), "-j", "1", "--wait", *FAST).startswith("20 experiments sent")
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
    assert {entry["name"] for rev in shown for entry in [e["revs"][0] for e in rev["experiments"] or []]} == set(names)


def is_running(host) -> bool:
    """Return True if a stage or DVC runs in the clone of an experiment on the host."""
    return any("clone" in Path(process.cwd()).parts for process in host.processes())
