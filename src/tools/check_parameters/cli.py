"""Check the values of all parameters. dvc.yaml runs this before each stage.

    python src check_parameters

A stage reads only its own sections. This command reads those of all stages, so that a wrong value is found in the first
second of `dvc repro`, not when the last stage starts. It is a separate command, which stages do not import, so that no
value or code of a later stage decides what an earlier one writes. It prints a sentence for each wrong value and exits
with status 2.

In a stage that DVC runs, it also deletes the metrics that the previous run left for later stages.
"""

import os
import sys

from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from tools.check_parameters.stale_metrics import delete_stale_metrics
from tools.record.arguments import tool_parser
from tools.record.problems import find_all_problems


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise ParamsError with all wrong values. In a stage, also delete stale metrics."""
    tool_parser("check_parameters", __doc__).parse_args(argv)
    if problems := find_all_problems():
        raise ParamsError("\n".join(problems))

    # DVC names the stage that it runs, src/STAGE.py, which imports the library from its own folder.
    if stage := os.environ.get("DVC_STAGE"):
        if sys.flags.safe_path:
            raise EnvironmentFailure("PYTHONSAFEPATH is set, so that a stage cannot import src/lm; unset it")
        for metric in delete_stale_metrics(stage):
            print(f"{metric}: deleted: stale, from the previous run; its stage writes it again")
