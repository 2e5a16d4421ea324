"""Run a stage in a forked process that kills itself at a chosen call, or that may write only small files."""

import multiprocessing
import os
import pkgutil
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

FORKS = multiprocessing.get_context("forkserver")


class Ended(NamedTuple):
    """The exit code, negative for a signal, and what was printed on stderr."""

    code: int
    err: str


def run_disturbed(module: str, arguments: list[str], kill_before: int = 0, max_file_bytes: int = 0) -> Ended:
    """Run `main` of a stage here; SIGKILL it before that call (from 1) of `os.fsync` and `os.replace`.

    They are the calls that make a file permanent. A limit on the size of files stands in for a full disk.
    """
    FORKS.set_forkserver_preload(["numpy", "pandas", "pyarrow.parquet", "tiktoken", "tokenizers"])
    with tempfile.NamedTemporaryFile("r") as err:
        process = FORKS.Process(
            target=_run, args=(Path.cwd(), err.name, module, arguments, kill_before, max_file_bytes)
        )
        process.start()
        process.join(120)
        assert process.exitcode is not None, f"{module} hangs"
        return Ended(process.exitcode, err.read())


def _run(folder: Path, err: str, module: str, arguments: list[str], kill_before: int, max_file_bytes: int) -> None:
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    main = pkgutil.resolve_name(f"{module}:main")
    left = kill_before

    def counted(call):
        def wrapped(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return wrapped

    os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    if max_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    sys.exit(main(arguments))
