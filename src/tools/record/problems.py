"""Find the wrong values in the parameter files of a folder, in the sections that the parameters select."""

import difflib
from pathlib import Path

from lm.core.errors import ParamsError
from lm.core.numerics import DeviceChoice
from lm.core.params import find_problems, read_section, read_yaml
from lm.core.paths import PARAMS, PRESETS, RUNTIME, SOURCES
from lm.evaluate.config import EvalParams
from lm.model.config import ModelParams
from lm.model.initial import reject_other_folder
from lm.text.config import AnyFetch, LocalPath, Selection
from lm.text.slices import AnySlice, Slice
from lm.tokenizer.config import TokenizerParams, TokenizeRuntime
from lm.train.config import TrainParams, TrainRuntime, check_lengths

NAMES = ("data.source", "selection.name", "tokenizer.name", "model.name")
SECTIONS = ("data", "selection", "tokenizer", "model", "local", "train", "eval")


def find_all_problems(folder: Path = Path()) -> list[str]:
    """Return a sentence for each wrong value in the four files, in the sections that the parameters select."""
    params, presets, sources, runtime = (folder / name for name in (PARAMS, PRESETS, SOURCES, RUNTIME))
    problems = find_unknown_sections(params, (presets, sources))
    problems += find_problems(params, {"local": LocalPath, "train": TrainParams, "eval": EvalParams})
    problems += find_problems(runtime, {"device": DeviceChoice, "tokenize": TokenizeRuntime, "train": TrainRuntime})

    # These names select the sections of the other files.
    if wrong_names := find_problems(params, dict.fromkeys(NAMES, str)):
        return wrong_names + problems
    source, selection, tokenizer, model = (read_section(params, name, str) for name in NAMES)
    of_source = {
        f"sources.{source}.fetch": AnyFetch,
        f"sources.{source}.train": AnySlice,
        f"sources.{source}.validation": Slice,
        f"sources.{source}.prompts": tuple[str, ...],
    }
    of_presets = {
        f"selections.{selection}": Selection,
        f"tokenizers.{tokenizer}": TokenizerParams,
        f"models.{model}": ModelParams,
    }
    problems += find_problems(sources, of_source) + find_problems(presets, of_presets)
    return problems or find_wrong_lengths(params, presets) + find_wrong_start(params)


def find_unknown_sections(params: Path, others: tuple[Path, ...]) -> list[str]:
    """Return a sentence for each section of params.yaml that nothing reads, such as one added by `-S +NAME=VALUE`."""
    file_of_section = {section: other.name for other in others for section in read_yaml(other)}
    problems = []
    for section in read_yaml(params):
        if section in SECTIONS:
            continue
        nearest = difflib.get_close_matches(str(section), SECTIONS, n=1, cutoff=0.0)[0]
        remedy = f"the nearest valid name is {nearest}"
        if section in file_of_section:
            remedy = f"it is a section of {file_of_section[section]}: -S {file_of_section[section]}:{section}.…"
        problems.append(f"{params}: {section} is unknown; {remedy}")
    return problems


def find_wrong_lengths(params: Path, presets: Path) -> list[str]:
    """Return a sentence for each length that is too long for the context of the model."""
    name = read_section(params, "model.name", str)
    model = read_section(presets, f"models.{name}", ModelParams)
    seq_len = read_section(params, "train.seq_len", int)
    try:
        check_lengths(params, seq_len, name, model.max_seq_len)
    except ParamsError as error:
        return str(error).splitlines()
    return []


def find_wrong_start(params: Path) -> list[str]:
    """Return a sentence if the folder at train.init_from exists but a run cannot start from it.

    DVC may pull a missing folder before the training.
    """
    start = params.parent / read_section(params, "train.init_from", str)
    try:
        if start.exists():
            reject_other_folder(start)
    except ParamsError as error:
        return [f"{params}: {error}"]
    return []
