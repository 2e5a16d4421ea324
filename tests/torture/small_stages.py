"""A pipeline whose stages end within a second, and its stages in forked processes, on folders made from a snapshot."""

import contextlib
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import shim
import yaml

from support import ROOT
from support.stages import change_params, command_of, stage_folder
from support.texts import write_sentences
from support.workspace import SMALL, SMALL_TEXT

Tree = dict[str, bytes | None]  # the files of a folder; None: a folder

TINY = SMALL | {
    "tokenizers.bpe.vocab_size": 300, "tokenizer.name": "bpe",
    "train.batch_tokens": 256, "train.micro_batch_tokens": 256, "train.max_tokens": 768, "train.warmup_steps": 1,
    "train.log_every_tokens": 256, "train.eval_every_tokens": 512, "train.eval_tokens": 256,
    "eval.stride_fraction": 1.0, "eval.sample_tokens": 4,
}  # fmt: skip
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
KEPT = (".runs", ".sources")
USER_ERRORS = range(2, 7)
TIMEOUT_S = 120


class Ended(NamedTuple):
    """The end of a stage: its exit status (negative: a signal), what it printed on stderr, its number of calls."""

    code: int
    err: str
    calls: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Return whether it succeeded, or said one sentence and ended with a code of the catalogue."""
        if "Traceback" in self.err:
            return False
        last = (self.err.strip().splitlines() or [""])[-1]
        return self.code == 0 or (self.code in USER_ERRORS and last.startswith("error: "))


def outputs_of(stage: str) -> list[str]:
    """Return the paths that dvc.yaml declares as outputs of a stage."""
    entry = STAGES[stage]
    declared = [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]
    return [name if isinstance(name, str) else next(iter(name)) for name in declared]


def inputs_of(stage: str) -> list[str]:
    """Return the paths that a stage reads: what dvc.yaml lists, the parameters, and what earlier runs have kept."""
    return [
        *STAGES[stage]["deps"],
        "params.yaml",
        "presets.yaml",
        "sources.yaml",
        "runtime.yaml",
        "data/init",
        "data/local",
        *KEPT,
    ]


def main_of(stage: str) -> Callable[[], int]:
    """Return what runs a stage in the current folder, as dvc.yaml does, and returns its exit status."""
    _, script, *arguments = shlex.split(command_of(STAGES[stage]))
    return functools.partial(importlib.import_module(Path(script).stem).main, arguments)


def run(work: Callable[[], int], folder: Path, log: Path | None = None, fault: shim.Fault | None = None) -> Ended:
    """Do the work in `folder`, in a fork of this process; its file operations are logged or disturbed."""
    with tempfile.TemporaryDirectory() as scratch:
        err, counted = Path(scratch) / "err", Path(scratch) / "calls"
        pid = os.fork()
        if not pid:
            _run_here(work, folder, err, counted, log, fault)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(status, err.read_text(), json.loads(counted.read_text()) if counted.exists() else {})


def _run_here(work, folder: Path, err: Path, counted: Path, log: Path | None, fault: shim.Fault | None) -> None:
    """Do the work and end this process."""
    code = 1
    try:
        os.chdir(folder)
        signal.alarm(TIMEOUT_S)
        for path, descriptor in ((os.devnull, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), descriptor)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        shim.arm(folder, log, fault)
        code = work()
        shim.mark()
        counted.write_text(json.dumps(shim.disarm()))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def read_tree(folder: Path) -> Tree:
    """Return all files and folders below `folder`, without links and the locks, which say only whom to wait for."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink() and not is_lock(path.name)
    }


def is_lock(name: str) -> bool:
    """Return whether a file is the lock of an output."""
    return re.fullmatch(r"\..*\.lock", Path(name).name) is not None


def write_tree(tree: Tree, folder: Path) -> None:
    """Fill `folder` with what `read_tree` returned."""
    for name, content in tree.items():
        path = folder / name
        (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
        if content is not None:
            path.write_bytes(content)


@contextlib.contextmanager
def copy_of(tree: Tree) -> Iterator[Path]:
    """Yield a temporary folder with the files of a tree."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)).resolve()
    try:
        write_tree(tree, folder)
        yield folder
    finally:
        shutil.rmtree(folder)


def below(tree: Tree, names: list[str]) -> Tree:
    """Return the files of a tree that are one of `names` or lie below it."""
    return {path: content for path, content in tree.items() if content is not None and is_below(path, names)}


def is_below(path: str, names: list[str]) -> bool:
    """Return whether a path is one of `names` or lies below it."""
    return any(path == name or path.startswith(f"{name}/") for name in names)


def load_modules() -> None:
    """Import what stages import late, so that their forks need not."""
    scripts = (Path(shlex.split(command_of(stage))[1]).stem for stage in STAGES.values())
    for name in ("matplotlib.pyplot", "pandas", "torch._dynamo", *scripts):
        importlib.import_module(name)


class Case(NamedTuple):
    """Work on files: what it finds, with outputs of an older run in place, and what it must leave of its outputs."""

    name: str
    work: Callable[[], int]
    before: Tree
    outputs: list[str]
    right: Tree


def make_cases(stages: Collection[str]) -> list[Case]:
    """Run stages of the small pipeline twice, with other data and then with its own; return a case for each."""
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = stage_folder(Path(temporary).resolve() / "pipeline")
        change_params(folder, {"train.checkpoint_every_s": 0, "train.keep_checkpoints": 1}, "runtime.yaml")
        change_params(folder, TINY | {"train.seed": 2})
        write_sentences(folder / SMALL_TEXT, 70, seed=2)
        for stage in stages:
            assert run(main_of(stage), folder).code == 0
        change_params(folder, TINY | {"train.seed": 1})
        write_sentences(folder / SMALL_TEXT, 80)
        for stage in stages:
            outputs = outputs_of(stage)
            wanted = [*inputs_of(stage), *outputs]
            tree = read_tree(folder)
            before = {name: content for name, content in tree.items() if content is None or is_below(name, wanted)}
            ended = run(main_of(stage), folder)
            assert ended.code == 0, ended.err
            cases.append(Case(stage, main_of(stage), before, outputs, below(read_tree(folder), outputs)))
    return cases


def recover(case: Case, folder: Path) -> str | None:
    """Do the work again, and after the command that it names; return None for the right outputs, else what is wrong."""
    ended = run(case.work, folder)
    if named := re.search(r"delete (\S+) to train from scratch", ended.err):
        shutil.rmtree(folder / named[1])
        ended = run(case.work, folder)
    if ended.code:
        return f"ended with {ended.code}: {ended.err}"
    found = below(read_tree(folder), case.outputs)
    wrong = sorted(name for name in {*found, *case.right} if found.get(name) != case.right.get(name))
    return f"wrong: {', '.join(wrong)}" if wrong else None
