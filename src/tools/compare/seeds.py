"""Commands of DVC that run a configuration with the seeds that it still lacks, ready to copy."""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from lm.core.params import read_yaml
from lm.core.paths import PARAMS, PRESETS, SOURCES
from tools.record.lock import md5_of, paths_of
from tools.record.parameters import SELECTORS, flatten
from tools.record.paths import PIPELINE
from tools.record.run import SEED

WANTED = 5  # seeds of a configuration
START = "dvc queue start | cat  # wait until its workers have ended"
PLAIN = re.compile(r"[A-Za-z_][\w./-]*")  # a string that Hydra's grammar takes without quotes
WORDS = {"true", "false", "null", "nan", "inf"}  # strings that Hydra's grammar reads as other values


def missing_seeds(used: Collection[object], sides: Sequence[Collection[object]]) -> list[int]:
    """Return the seeds that a side, which has `used`, lacks of the WANTED seeds for all sides of a comparison.

    These are first the seeds that most sides have, because equal seeds are compared as pairs, then the lowest from 1
    on.
    """
    known = [seed for side in sides for seed in set(side) if isinstance(seed, int)]
    candidates = sorted({*known, *range(1, WANTED + 1)})
    wanted = sorted(candidates, key=known.count, reverse=True)[:WANTED]
    return sorted(set(wanted) - set(used))


def free_name(wish: str, taken: Iterable[str]) -> str:
    """Return a name for experiments, made from the name of a run, with which no experiment begins yet."""
    stem = re.sub(r"[^\w-]+", "-", wish).strip("-") or "run"
    stem = re.sub(r"(-seeds\d*)?(-\d+)?$", "", stem) or "run"
    taken = list(taken)
    name = f"{stem}-seeds"
    number = 2
    while any(other == name or other.startswith(f"{name}-") for other in taken):
        name = f"{stem}-seeds{number}"
        number += 1
    return name


def pattern_of(name: str, seeds: list[int]) -> str:
    """Return the pattern that names the experiments of `queue_commands` to `compare`; DVC numbers several of them."""
    return f"{name}-*" if len(seeds) > 1 else name


def queue_commands(
    run: str, params: Mapping[str, object], inputs: Mapping[str, str], seeds: list[int], name: str
) -> list[str]:
    """Return the command that queues a configuration with these seeds, as experiments that begin with `name`.

    `run` is the name of a run of this configuration, `params` and `inputs` are its own (`Run`). If the folder has other
    code, data or presets than that run, the first line is a comment that says so.
    """
    words = ["dvc", "exp", "run", "--queue", "-n", name, "-S", f"{SEED}={','.join(map(str, seeds))}"]
    changed = changed_inputs(inputs)
    settings = settings_of(params)
    if changed or settings is None:
        what = ", ".join(changed) or "presets"
        return [f"# {run} ran with other {what} than this folder has; check it out first", shlex.join(words)]
    for setting in settings:
        words += ["-S", setting]
    return [shlex.join(words)]


def changed_inputs(inputs: Mapping[str, str]) -> list[str]:
    """Return the inputs of a run that no stage makes, and that are not the files in this folder."""
    made = {path for stage in read_yaml(PIPELINE)["stages"].values() for path in paths_of(stage, "outs")}
    return [path for path, md5 in inputs.items() if Path(path) not in made and md5_of(Path(path)) != md5]


def settings_of(params: Mapping[str, object]) -> list[str] | None:
    """Return the values for -S that give the parameter files in this folder the values of a run, except its seed.

    None if -S cannot give a value: one of a preset that the files lack, or a list of texts.
    """
    # The parameters here, by file and dotted name.
    files = {"": flatten(read_yaml(PARAMS))}
    for path in (PRESETS, SOURCES):
        files[f"{path}:"] = flatten(read_yaml(path))

    settings = []
    for name, value in params.items():
        name = with_preset_name(name, params)
        file = next((file for file, here in files.items() if name in here), None)
        if file is None:
            return None
        if name == SEED or files[file][name] == value:
            continue
        text = as_override(value)
        if text is None:
            return None
        settings.append(f"{file}{name}={text}")
    return settings


def with_preset_name(name: str, params: Mapping[str, object]) -> str:
    """Return models.tiny.n_layer for models.*.n_layer: undo `preset_names_left_out`."""
    for selector, book in SELECTORS.items():
        if name.startswith(f"{book}.*."):
            return name.replace("*", str(params[selector]), 1)
    return name


def as_override(value: object) -> str | None:
    """Return a value in Hydra's grammar, which -S reads; None for one that it cannot hold."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        is_plain = PLAIN.fullmatch(value) and value.lower() not in WORDS
        return value if is_plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return "[" + ",".join(str(as_override(each)) for each in value) + "]"
    return None
