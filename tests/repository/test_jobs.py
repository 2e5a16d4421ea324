"""The commands of docs/distributed.md that start ranks have the flags of the stage."""

import re
import shlex
import subprocess

from torch.distributed.run import get_args_parser

from support import ROOT
from support.stages import STAGES, command_of

PAGE = (ROOT / "docs" / "distributed.md").read_text()
(SLURM,) = re.findall(r"^```bash tested\n(#!/bin/bash\n.*?)^```", PAGE, re.M | re.S)
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
