"""A pipeline whose stages end within a second, and its stages in forked processes, on folders made from a snapshot."""

import contextlib
import functools
import importlib
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import shim

from lm.core.files import write_json
from support import ROOT
from support.stages import (
    STAGES,
    TINY,
    change_params,
    module_and_arguments,
    outputs_of,
    run_here,
    stage_folder,
    write_texts,
)

Tree = dict[str, bytes | None]  # the files of a folder; None: a folder

PARAMETERS = ["params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml"]
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


def run(work: Callable[[], int], folder: Path, log: Path | None = None, fault: shim.Fault | None = None) -> Ended:
    """Do the work in `folder`, in a fork of this process; its file operations are logged or disturbed."""
    with tempfile.TemporaryDirectory() as scratch:
        err = Path(scratch) / "err"
        counted = Path(scratch) / "calls"
        pid = os.fork()
        if pid == 0:
            _run_here(work, folder, err, counted, log, fault)
        _, status = os.waitpid(pid, 0)
        calls = json.loads(counted.read_text()) if counted.exists() else {}
        return Ended(os.waitstatus_to_exitcode(status), err.read_text(), calls)


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


@contextlib.contextmanager
def copy_of(tree: Tree) -> Iterator[Path]:
    """Yield a temporary folder with the files of a tree."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)).resolve()
    try:
        for name, content in tree.items():
            path = folder / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder)


def below(tree: Tree, names: list[str]) -> Tree:
    """Return the files of a tree that are one of `names` or lie below it."""
    return {path: content for path, content in tree.items() if content is not None and is_below(path, names)}


def is_below(path: str, names: list[str]) -> bool:
    """Return whether a path is one of `names` or lies below it."""
    return any(path == name or path.startswith(f"{name}/") for name in names)


class Case(NamedTuple):
    """Work on files: what it finds, with outputs of an older run in place, and what it must leave of its outputs."""

    name: str
    work: Callable[[], int]
    before: Tree
    outputs: list[str]
    right: Tree


def make_cases(stages: list[str]) -> list[Case]:
    """Run stages of the small pipeline twice, with other data and then with its own; return a case for each."""
    # What stages import late is loaded once, for all their forks.
    stage_modules = [module_and_arguments(stage)[0] for stage in stages]
    for name in ["matplotlib.pyplot", "pandas", "torch._dynamo", *stage_modules]:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = stage_folder(Path(temporary).resolve() / "pipeline")
        change_params(folder, {"train.checkpoint_every_s": 0, "train.keep_checkpoints": 1}, "runtime.yaml")
        change_params(folder, TINY | {"train.seed": 2})
        write_texts(folder / "data/local/texts.jsonl", 40)
        for stage in stages:
            run_stage(stage, folder)
        change_params(folder, {"train.seed": 1})
        write_texts(folder / "data/local/texts.jsonl", 50)
        return [run_stage(stage, folder) for stage in stages]


def run_stage(stage: str, folder: Path) -> Case:
    """Run a stage; return it as a case."""
    work = functools.partial(run_here, stage)
    outputs = outputs_of(stage)
    read = [*STAGES[stage]["deps"], *PARAMETERS, "data/init", "data/local", ".runs", *outputs]
    before = {name: content for name, content in read_tree(folder).items() if content is None or is_below(name, read)}
    ended = run(work, folder)
    assert ended.code == 0, ended.err
    return Case(stage, work, before, outputs, below(read_tree(folder), outputs))


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


def record(name: str, figures: Mapping, started: float) -> None:
    """Write the figures of a program that began at `started` (time.monotonic) and found nothing lost."""
    machine = {"processor": platform.processor(), "cores": os.cpu_count(), "system": platform.platform()}
    path = ROOT / "benchmarks" / "results" / "torture" / f"{name}.json"
    write_json(path, {"machine": machine, "seconds": round(time.monotonic() - started), **figures})
