"""The fingerprint of a run: a hash of everything that decides its bits; it names the run's folder in .runs.

It covers the parameters, the inputs, the versions of torch, NumPy and numba, and all code that src/train.py can reach:
its own file and every module of CODE_FOLDERS, the folders that dvc.yaml lists for the stage.

It does not cover:
- comments, docstrings and formatting: a run of three days continues after an explanation was reworded;
- the device, the dtype and the numbers of threads and ranks: in fast numerics `segments` in model.json records
  them, and a run that continues with others warns;
- the build of torch for a CPU or for CUDA, versions of other packages, and environment variables.

Python's version counts only where it writes the same syntax tree differently.
"""

import ast
import dataclasses
import functools
from pathlib import Path

from lm.core.files import sha256_file, sha256_json
from lm.model.config import ModelConfig
from lm.model.machine import library_versions
from lm.tokens.tokenfile import sidecar_path
from lm.train.config import TrainParams

SOURCE = Path(__file__).resolve().parents[2]  # src
CODE_FOLDERS = ("lm/core", "lm/exact", "lm/model", "lm/tokenizer", "lm/tokens", "lm/train")


def run_fingerprint(
    params: TrainParams,
    config: ModelConfig,
    initial_sha256: str | None,
    token_files: list[Path],
    without: tuple[str, ...] = (),
) -> str:
    """Return the 16 hex digits that identify the run which trains this model on these token files.

    initial_sha256: of the weights that the run starts from, or None. token_files: for training and for validation.
    without: names of parameters to ignore.
    """
    train = {name: value for name, value in dataclasses.asdict(params).items() if name not in without}
    deciding = {
        "params": {"train": train, "model": dataclasses.asdict(config)},
        "initial": initial_sha256,
        "tokens": [sha256_file(sidecar_path(path)) for path in token_files],  # a sidecar has the hash of the tokens
        "versions": library_versions(),
        "code": {name: code_of(SOURCE / name) for name in code_files()},
    }
    return sha256_json(deciding)[:16]


def code_files() -> list[str]:
    """Return the names below SOURCE of the files whose code counts, sorted."""
    modules = [path for folder in CODE_FOLDERS for path in (SOURCE / folder).rglob("*.py")]
    return sorted(str(path.relative_to(SOURCE)) for path in [SOURCE / "train.py", *modules])


def code_of(path: Path) -> str:
    """Return the code of a Python file without comments, docstrings and formatting."""
    return without_explanations(path.read_text(encoding="utf-8"))


@functools.cache  # a run needs the fingerprint more than once; all files take half a second
def without_explanations(text: str) -> str:
    """Return Python code without comments, docstrings and formatting."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        may_have_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if may_have_one and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)
