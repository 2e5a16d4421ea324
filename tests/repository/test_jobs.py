"""The jobs of docs/distributed.md for Slurm and SkyPilot: their flags exist, and when Slurm's job is requeued."""

import os
import re
import shlex
import subprocess

import pytest
import yaml
from torch.distributed.run import get_args_parser

from support import ROOT

PAGE = (ROOT / "docs" / "distributed.md").read_text()
(SLURM,) = re.findall(r"^```bash parse\n(#!/bin/bash\n#SBATCH.*?)^```", PAGE, re.M | re.S)
SKY = yaml.safe_load((ROOT / "extras" / "cloud" / "sky.yaml").read_text())
STAGE = shlex.split(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["train"]["cmd"])[1:]


NUMBERS = {name: "2" for name in ("NODE_RANK", "NUM_NODES", "NUM_GPUS_PER_NODE", "NODE_IPS")}


def command(script: str, program: str) -> list[str]:
    """Return the words of the command of a script that begins with a program, as bash reads them."""
    line = next(line for line in script.replace("\\\n", "").splitlines() if line.startswith(program))
    numbers = {f"SKYPILOT_{name}": number for name, number in NUMBERS.items()}
    done = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], env=numbers, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_slurms_ranks_run_the_stage_with_its_flags():
    words = command(SLURM, "srun")
    assert words[words.index("src/train.py") :] == STAGE


@pytest.mark.parametrize("script", [PAGE, SKY["run"]], ids=["docs/distributed.md", "extras/cloud/sky.yaml"])
def test_torchrun_knows_its_flags_and_runs_the_stage(script):
    torchrun = get_args_parser().parse_args(command(script, "torchrun")[1:])
    assert [torchrun.training_script, *torchrun.training_script_args] == STAGE


@pytest.mark.parametrize(
    ("code", "restarts", "is_requeued"),
    [(0, 0, False), (2, 0, False), (5, 0, True), (137, 3, True), (143, 19, True), (143, 20, False)],
)
def test_a_job_is_requeued_after_a_stop_and_a_lost_rank_only_and_twenty_times_at_most(code, restarts, is_requeued):
    commands = f"scontrol() {{ echo $*; }}\n(exit {code})\n{SLURM[SLURM.index('code=$?') :]}"
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    if not restarts:
        del environment["SLURM_RESTART_COUNT"]  # Slurm sets it from the second start on
    done = subprocess.run(["bash", "-c", commands], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (code, "requeue 7" if is_requeued else ""), done.stderr
