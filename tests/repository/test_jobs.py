"""The jobs of docs/distributed.md for Slurm: their flags, when one is requeued, and what a job of an array makes."""

import os
import re
import shlex
import subprocess

import pytest
import yaml
from torch.distributed.run import get_args_parser

from support import ROOT
from support.stages import command_of
from support.workspace import Workspace

PAGE = (ROOT / "docs" / "distributed.md").read_text()
(SLURM,) = re.findall(r"^```bash parse\n(#!/bin/bash\n#SBATCH --nodes.*?)^```", PAGE, re.M | re.S)
(ARRAY,) = re.findall(r"^```bash parse\n(#!/bin/bash\n#SBATCH --array.*?)^```", PAGE, re.M | re.S)
STAGE = shlex.split(command_of(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["train"]))[1:]


def command(script: str, program: str) -> list[str]:
    """Return the words of the command of a script that begins with a program, as bash reads them."""
    line = next(line for line in script.replace("\\\n", "").splitlines() if line.startswith(program))
    done = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], env={}, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_slurms_ranks_run_the_stage_with_its_flags():
    words = command(SLURM, "srun")
    assert words[words.index("src/train.py") :] == STAGE


def test_torchrun_knows_its_flags_and_runs_the_stage():
    torchrun = get_args_parser().parse_args(command(PAGE, "torchrun")[1:])
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


@pytest.mark.slow
def test_a_job_of_the_array_adds_its_experiment_to_the_repository(tmp_path, finished):
    workspace = Workspace(tmp_path / "lm", finished)
    workspace.commit()
    script = ARRAY.replace("source .venv/bin/activate\n", "")  # the environment of the tests is active
    workspace.run("bash", "-c", script, SLURM_ARRAY_TASK_ID="3", SLURM_CPUS_PER_TASK="1")
    assert workspace.get("train.seed") != 3
    workspace.run("dvc", "exp", "apply", "seed-3")
    assert workspace.get("train.seed") == 3
    assert workspace.repro() == set()
