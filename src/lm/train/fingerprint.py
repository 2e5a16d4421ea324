"""The fingerprint of a run: a hash of all that decides its bits.

That is the parameters, the inputs, torch's version, and the code. The code is every module that src/train.py imports,
directly or through others, but for those of DECIDES_NO_BITS. Words do not count: a run of three days continues after a
message was reworded.
"""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from lm.core.files import sha256_file, sha256_json
from lm.model.gemma3 import ModelConfig
from lm.tokens.tokenfile import sidecar_path
from lm.train.config import TrainParams

SOURCE = Path(__file__).resolve().parents[2]  # src
LOOP = "train.py"
# Modules that the loop imports and that cannot change the bits of a result, each with the reason. What they import
# counts only if another module imports it too.
DECIDES_NO_BITS = {
    "lm/core/errors.py": "sentences and exit codes",
    "lm/core/files.py": "whole files, read under hashes that are in the fingerprint or in a record",
    "lm/core/params.py": "the values that it returns are in the fingerprint",
    "lm/core/parent.py": "ends a run, which then resumes",
    "lm/model/archives.py": "refuses hostile files",
    "lm/model/device.py": "device, dtype and threads are in the record of each segment, and a change is warned of",
    "lm/model/threads.py": "adapts the number of threads only where no bit depends on it",
    "lm/train/checkpoints.py": "whole states, read under the hash in their record",
    "lm/train/distributed.py": "how ranks meet and leave",
    "lm/train/fingerprint.py": "this module: the keys of .runs",
    "lm/train/launcher.py": "starts processes",
    "lm/train/preflight.py": "prints the size of a run and refuses one that does not fit",
    "lm/train/progress.py": "prints",
    "lm/train/signals.py": "ends a run, which then resumes",
}


def run_fingerprint(
    params: TrainParams, config: ModelConfig, initial_sha256: str | None, tokens: list[Path], without=()
) -> str:
    """Return the fingerprint of the run that trains this model on these token files, from these weights if any.

    `without` names parameters that do not count; an empty list does not count either.
    """
    train = {name: value for name, value in dataclasses.asdict(params).items() if name not in without and value != ()}
    inputs = {"initial": initial_sha256} | {path.name: sha256_file(sidecar_path(path)) for path in tokens}
    return fingerprint({"train": train, "model": dataclasses.asdict(config)}, inputs)


def fingerprint(params: dict, input_hashes: dict[str, str | None]) -> str:
    """Return the 16 hex digits that identify a run."""
    code = {name: arithmetic_of((SOURCE / name).read_text(encoding="utf-8")) for name in deciding_files()}
    torch_version = torch.__version__.split("+")[0]
    return sha256_json({"params": params, "inputs": input_hashes, "code": code, "torch": torch_version})[:16]


def deciding_files() -> list[str]:
    """Return the files below SOURCE whose code determines the weights of a run, sorted."""
    found, pending = set(), [LOOP]
    while pending:
        name = pending.pop()
        if name not in found and name not in DECIDES_NO_BITS:
            found.add(name)
            pending += _imported_files(SOURCE / name)
    return sorted(found)


def _imported_files(path: Path) -> Iterator[str]:
    """Yield the files below SOURCE that a module imports, also inside its functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = name.replace(".", "/") + ".py"
            if (SOURCE / file).exists():
                yield file


def arithmetic_of(code: str) -> str:
    """Return Python code without comments, formatting, docstrings, messages and range checks."""
    tree = _WithoutWords().visit(ast.parse(code))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return ast.unparse(_WithoutMessages(used).visit(tree))


class _WithoutWords(ast.NodeTransformer):
    """Remove docstrings, what errors and `print` say, and `__post_init__`, which only checks ranges."""

    def visit_Expr(self, node):
        is_print = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", None) == "print"
        return ast.Pass() if is_print or isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node):
        return ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)

    def visit_FunctionDef(self, node):
        return None if node.name == "__post_init__" else self.generic_visit(node)


class _WithoutMessages(ast.NodeTransformer):
    """Remove strings that functions assign to names which nothing but an error or a `print` used."""

    def __init__(self, used: set[str]):
        self.used = used

    def visit_Module(self, node):
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.generic_visit(statement)
        return node

    def visit_Assign(self, node):
        is_text = isinstance(node.value, ast.JoinedStr) or isinstance(getattr(node.value, "value", None), str)
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        is_unused = len(names) == len(node.targets) and not self.used & set(names)
        return ast.Pass() if is_text and is_unused else node
