"""Check the values of all parameters, as each stage does before its work in dvc.yaml.

    python src check_parameters

A stage reads its own sections only. This command reads those of all stages, so that a wrong value is found in the first
second of `dvc repro`, not when the last stage starts. It is a command beside the stages, not imported by them: no
value or code of a later stage decides what an earlier one writes. Exit status 2, and a sentence for each wrong value.
"""

from lm.core.errors import ParamsError, exit_with_status
from tools.common.arguments import tool_parser
from tools.common.problems import find_all_problems


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise ParamsError with all wrong values."""
    tool_parser("check_parameters", __doc__).parse_args(argv)
    if problems := find_all_problems():
        raise ParamsError("\n".join(problems))
