"""Check the values of all parameters, as each stage does before its work in dvc.yaml.

    python src check_parameters

A stage reads its own sections only. This command reads those of all stages, so that a wrong value is found in the first
second of `dvc repro`, not when the last stage starts. It is a command beside the stages, not imported by them: no
value or code of a later stage decides what an earlier one writes. Exit status 2, and a sentence for each wrong value.
"""

from lm.core.errors import ParamsError, exit_with_status
from lm.core.params import find_problems, read_section
from lm.core.paths import PARAMS, PRESETS, RUNTIME, SOURCES
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.text.rules import Selection
from lm.text.slices import AnySlice, Slice
from lm.text.sources.kinds import AnyFetch
from lm.text.sources.local import LocalPath
from lm.tokenizer.config import TokenizerParams, TokenizeRuntime
from lm.train.config import TrainParams, TrainRuntime
from tools.common.arguments import tool_parser

NAMES = ("data.source", "selection.name", "tokenizer.name", "model.name")


def find_all_problems() -> list[str]:
    """Return a sentence for each wrong value in the four files, in the sections that the parameters select."""
    problems = find_problems(PARAMS, {"local": LocalPath, "train": TrainParams, "eval": EvalParams})
    problems += find_problems(RUNTIME, {"tokenize": TokenizeRuntime, "train": TrainRuntime})

    # These names select the sections of the other files.
    if wrong_names := find_problems(PARAMS, dict.fromkeys(NAMES, str)):
        return wrong_names + problems
    source, selection, tokenizer, model = (read_section(PARAMS, name, str) for name in NAMES)
    of_source = {
        f"sources.{source}.fetch": AnyFetch,
        f"sources.{source}.train": AnySlice,
        f"sources.{source}.validation": Slice,
        f"sources.{source}.prompts": tuple[str, ...],
    }
    presets = {
        f"selections.{selection}": Selection,
        f"tokenizers.{tokenizer}": TokenizerParams,
        f"models.{model}": ModelParams,
    }
    return problems + find_problems(SOURCES, of_source) + find_problems(PRESETS, presets)


@exit_with_status
def main(argv: list[str]) -> None:
    """Raise ParamsError with all wrong values."""
    tool_parser("check_parameters", __doc__).parse_args(argv)
    if problems := find_all_problems():
        raise ParamsError("\n".join(problems))
