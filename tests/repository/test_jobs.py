"""The commands of docs/distributed.md that start ranks have the flags of the stage."""

import re
import shlex

from torch.distributed.run import get_args_parser

from support import ROOT
from support.stages import STAGES, command_of

# The script of the stage train, and its arguments.
TRAIN = shlex.split(command_of(STAGES["train"]))[1:]


def test_slurm_and_torchrun_run_the_stage_with_its_flags():
    page = (ROOT / "docs" / "distributed.md").read_text().replace("\\\n", "")
    (srun,) = re.findall("^srun .*", page, re.M)
    (torchrun,) = re.findall("^torchrun (.*)", page, re.M)

    arguments = get_args_parser().parse_args(shlex.split(torchrun))

    assert shlex.split(srun)[-len(TRAIN) :] == TRAIN
    assert [arguments.training_script, *arguments.training_script_args] == TRAIN
