"""Check the values of all parameters, as each stage does before its work in dvc.yaml.

    python src check_parameters

A stage reads its own sections only. This command reads those of all stages, so that a wrong value is found in the first
second of `dvc repro`, not when the last stage starts. It is a command beside the stages, not imported by them: no
value or code of a later stage decides what an earlier one writes. Exit status 2, and a sentence for each wrong value.

In a stage that DVC runs, it also deletes the metrics of later stages that are of a former run. The first stage of a run
prints which parameters differ from HEAD, and warns if DVC's cache was deleted.
"""

import contextlib
import os
import sys
from pathlib import Path

from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.core.messages import say
from tools.check_parameters.changed_parameters import describe_difference_from_head
from tools.check_parameters.former_metrics import delete_former_metrics
from tools.check_parameters.lost_cache import outputs_of_lost_cache
from tools.common.arguments import tool_parser
from tools.common.problems import find_all_problems

SAID = Path(".dvc/tmp/differs_from_head")  # the process group and the line that it has printed


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise ParamsError with all wrong values. In a stage, also do and print what the beginning of a run needs."""
    tool_parser("check_parameters", __doc__).parse_args(argv)
    if problems := find_all_problems():
        raise ParamsError("\n".join(problems))

    # DVC names the stage that it runs, src/STAGE.py, which imports the library from its own folder.
    if stage := os.environ.get("DVC_STAGE"):
        if sys.flags.safe_path:
            raise EnvironmentFailure("PYTHONSAFEPATH is set, so that a stage cannot import src/lm; unset it")
        for metric in delete_former_metrics(stage):
            print(f"{metric}: deleted, because it is of a former run; its stage writes it again")
        say_in_first_stage(describe_difference_from_head())
        warn_of_lost_cache(stage)


def say_in_first_stage(line: str) -> None:
    """Print a line, unless an earlier stage of this run of DVC has, whose stages are one group of processes."""
    said = f"{os.getpgid(0)} {line}"
    with contextlib.suppress(OSError):
        if SAID.read_text(encoding="utf-8") == said:
            return
    with contextlib.suppress(OSError):
        SAID.write_text(said, encoding="utf-8")
    if line:
        say(line)


def warn_of_lost_cache(stage: str) -> None:
    """Warn, before DVC deletes them, of outputs that are made again only because DVC's cache was deleted."""
    if lost := outputs_of_lost_cache(stage):
        problem = f"DVC's cache was deleted, so DVC makes {', '.join(lost)} again, although they are here"
        remedy = "to keep them, press Ctrl-C and run `python src verify --cache`, which prints the commands"
        say(f"warning: {problem}; {remedy}", file=sys.stderr)
