"""docs/sky.yaml: SkyPilot parses it, and its commands train, with folders of this machine in place of hosts."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from support import ROOT
from support.rank_cases import free_port
from support.workspace import Workspace

FILE = ROOT / "docs" / "sky.yaml"
TASK = yaml.safe_load(FILE.read_text())
PYTHON_WITH_SKYPILOT = ROOT / ".venv" / "cloud" / "bin" / "python"
PARSE = """
import json, sys, sky, yaml
config = yaml.safe_load(open(sys.argv[1]))
task = sky.Task.from_yaml_config(config, env_overrides=[("BUCKET", "our-states")])
task.num_nodes = 2
(resources,), (mount,) = task.resources, task.storage_mounts.values()
print(json.dumps([task.num_nodes, resources.accelerators, task.workdir, mount.name, mount.mode.value]))
"""


def host(rank: int, num_hosts: int, states: Path) -> dict[str, str]:
    """Return what SkyPilot sets on a host with one GPU."""
    numbers = {"NODE_RANK": rank, "NUM_NODES": num_hosts, "NUM_GPUS_PER_NODE": 1}
    addresses = "\n".join(["127.0.0.1"] * num_hosts)
    own = {f"SKYPILOT_{name}": str(number) for name, number in numbers.items()}
    return own | {"SKYPILOT_NODE_IPS": addresses, "STATES": str(states)}


def test_the_commands_are_those_of_the_pipeline():
    """The stage has the flags of dvc.yaml, torchrun knows its own, and nothing else of SkyPilot is read."""
    for script in (TASK["setup"], TASK["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    line = next(line for line in TASK["run"].replace("\\\n", "").splitlines() if line.startswith("torchrun"))
    given = host(1, 2, Path("states"))
    words = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], env=given, capture_output=True, text=True)
    torchrun = get_args_parser().parse_args(words.stdout.splitlines()[1:])
    assert (torchrun.nnodes, torchrun.nproc_per_node, torchrun.node_rank) == ("2", "1", 1)
    assert torchrun.master_addr == "127.0.0.1"
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["train"]["cmd"]
    assert [torchrun.training_script, *torchrun.training_script_args] == shlex.split(stage)[1:]
    assert set(re.findall(r"\$\{?([A-Z_]+)", TASK["run"])) == set(given)
    assert TASK["envs"]["STATES"] in TASK["file_mounts"]


def test_the_file_says_what_was_never_run():
    version = re.search(r"^skypilot==(.*)$", (ROOT / "requirements/cloud.txt").read_text(), re.M)
    head = FILE.read_text().partition("\nname:")[0]
    page = (ROOT / "docs" / "distributed.md").read_text()
    assert version and f"SkyPilot {version[1]} parses it" in " ".join(head.split())
    assert f"skypilot[aws]=={version[1]}'" in page
    assert "never run on a cloud" in head and "never run on a cloud" in page


@pytest.mark.skipif(not PYTHON_WITH_SKYPILOT.exists(), reason="needs requirements/cloud.txt in .venv/cloud")
def test_skypilot_parses_the_file(tmp_path):
    own = {"HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [PYTHON_WITH_SKYPILOT, "-c", PARSE, FILE]
    parsed = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    expected = [2, {"H100": 1}, ".", "our-states", "MOUNT_CACHED"]
    assert json.loads(parsed.stdout.splitlines()[-1]) == expected


def fill_bucket(states: Path, runs: Path) -> int:
    """Copy a run of `runs` as a lost host leaves it, with one state on the way; return the step of the state."""
    (record,) = runs.glob("*/kept-*.json")  # that of the validation in the middle
    (states / record.parent.name).mkdir()
    for path in (record, record.with_suffix(".pt")):
        shutil.copy(path, states / path.parent.name / path.name.replace("kept", "state"))
    return json.loads(record.read_text())["step"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("rsync"), reason="needs rsync")
def test_two_hosts_without_a_shared_disk_continue_a_run_and_end_with_the_bits_of_one_process(tmp_path, finished):
    """Then a later host, which has the bucket only, finds the finished run there."""

    def folder(name: str) -> Workspace:
        (tmp_path / name).mkdir()
        workspace = Workspace(tmp_path / name, finished)
        shutil.rmtree(workspace.folder / ".runs", ignore_errors=True)
        workspace.commit()
        workspace.change(**{"train.micro_batch_tokens": 256, "train.peak_lr": 0.003})  # two units, a run of its own
        return workspace

    def start(name: str, rank: int, num_hosts: int) -> tuple[Workspace, subprocess.Popen]:
        workspace = folder(name)
        activate = workspace.folder / ".venv" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.touch()
        environment = workspace.environment | host(rank, num_hosts, states)
        command = ["bash", "-c", TASK["run"].replace("29500", port)]
        return workspace, subprocess.Popen(
            command, cwd=workspace.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    states, port = tmp_path / "states", str(free_port())
    states.mkdir()
    alone = folder("alone")
    alone.repro()
    step = fill_bucket(states, alone.folder / ".runs")

    hosts = [start(f"host{rank}", rank, 2) for rank in range(2)]
    printed = [process.communicate(timeout=300)[0] for _, process in hosts]
    assert [process.returncode for _, process in hosts] == [0, 0], "\n".join(printed)
    assert "processes    2, 1 on this host" in printed[0] and f"resumed at step {step} from" in printed[0]
    first = hosts[0][0]
    for name in ("metrics/eval.json", "plots/validation.csv", "data/models/best_model_params.pt"):
        assert (first.folder / name).read_bytes() == (alone.folder / name).read_bytes(), name
    assert first.run("dvc", "status", "dvc.yaml").stdout.strip() == "Data and pipelines are up to date."

    _, process = start("later", 0, 1)
    assert "this run is already finished" in process.communicate(timeout=300)[0] and process.returncode == 0
