"""The jobs of docs/distributed.md for Slurm: their flags, when one is requeued, and what a job of an array makes."""

import os
import re
import shlex
import subprocess

import pytest
from torch.distributed.run import get_args_parser

from support import ROOT
from support.stages import STAGES, command_of
from support.workspace import Workspace

PAGE = (ROOT / "docs" / "distributed.md").read_text()
SCRIPT = r"^```bash tested\n(#!/bin/bash\n#SBATCH --{first_option}.*?)^```"
(SLURM,) = re.findall(SCRIPT.format(first_option="nodes"), PAGE, re.M | re.S)
(ARRAY,) = re.findall(SCRIPT.format(first_option="array"), PAGE, re.M | re.S)
# The script of the stage train, and its arguments.
TRAIN = shlex.split(command_of(STAGES["train"]))[1:]


def words_of_command(script: str, program: str) -> list[str]:
    """Return the words of the command of a script that begins with a program, as bash reads them."""
    lines = script.replace("\\\n", "").splitlines()
    (command,) = [line for line in lines if line.startswith(program)]
    printed = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], env={}, capture_output=True, text=True)
    return printed.stdout.splitlines()


def test_slurms_ranks_run_the_stage_with_its_flags():
    words = words_of_command(SLURM, "srun")

    assert words[words.index("src/train.py") :] == TRAIN


def test_torchrun_knows_its_flags_and_runs_the_stage():
    _, *arguments = words_of_command(PAGE, "torchrun")

    parsed = get_args_parser().parse_args(arguments)

    assert [parsed.training_script, *parsed.training_script_args] == TRAIN


STOPPED = 5
WRONG_PARAMETERS = 2
KILLED = 137
TERMINATED = 143


@pytest.mark.parametrize(
    ("exit_code", "num_restarts", "is_requeued"),
    [
        (0, 0, False),
        (WRONG_PARAMETERS, 0, False),
        (STOPPED, 0, True),
        (KILLED, 3, True),
        (TERMINATED, 19, True),
        (TERMINATED, 20, False),
    ],
)
def test_a_job_is_requeued_after_a_stop_and_a_lost_rank_only_and_twenty_times_at_most(
    exit_code, num_restarts, is_requeued
):
    end_of_job = SLURM[SLURM.index("code=$?") :]
    scontrol = "scontrol() { echo $*; }"  # in place of Slurm's
    environment = os.environ | {"SLURM_JOB_ID": "7"}
    if num_restarts:  # Slurm sets the variable from the second start on
        environment["SLURM_RESTART_COUNT"] = str(num_restarts)

    commands = f"{scontrol}\n(exit {exit_code})\n{end_of_job}"
    job = subprocess.run(["bash", "-c", commands], env=environment, capture_output=True, text=True)

    assert job.returncode == exit_code, job.stderr
    assert job.stdout.strip() == ("requeue 7" if is_requeued else "")


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
