"""A folder in which the real train stage ends within a second, and processes in which it can be broken off.

`Stage` forks from a process that has imported torch once, so that a killed stage costs little.
"""

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import train as train_stage
from lm.tokens.tokenfile import write_tokens
from support.workspace import Workspace

ARGUMENTS = ["train.bin", "validation.bin", "data/models", "metrics", "plots"]
TOKENIZER = {"kind": "bpe", "vocab_size": 50, "eot_id": 49, "sha256": "ab" * 32}
MAX_STEPS = 8
RESULTS = [
    "data/models/best_model_params.pt", "data/models/last_model_params.pt", "data/models/model.json",
    "plots/training.csv", "plots/validation.csv", "metrics/train.json",
]  # fmt: skip
SERVER = multiprocessing.get_context("forkserver")


def write_ids(name, count, tokenizer=TOKENIZER, top=None):
    """A token file of a fixed cycle; `top` replaces its last id."""
    ids = (np.arange(count) * 7919 % 61 % 49).astype(np.uint16)
    if top is not None:
        ids[-1] = top
    meta = {"documents": 1, "utf8_bytes": count, "surprisal_bits": None, "tokenizer": tokenizer}
    write_tokens(Path(name), [ids], "uint16", lambda: meta)


def make_training(folder: Path) -> Workspace:
    """A small copy with token files: 8 steps, a row of the curve each 2, a validation each 4, a state each one."""
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.change(**{"train.max_tokens": 512 * MAX_STEPS, "train.eval_every_tokens": 2048})
    with contextlib.chdir(folder):
        set_runtime(checkpoint_every_s=0)
        write_ids("train.bin", 3000)
        write_ids("validation.bin", 700)
    return workspace


# What follows is about the working directory.


def set_runtime(**values) -> None:
    """Change the section `train` of runtime.yaml."""
    path = Path("runtime.yaml")
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith(tuple(values))]
    place = lines.index("train:") + 1
    lines[place:place] = [f"  {name}: {value}" for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def clear() -> None:
    """Remove all that runs have made."""
    for name in (".runs", "data/models", "metrics", "plots"):
        shutil.rmtree(name, ignore_errors=True)


def results() -> dict[str, bytes]:
    """What a run has made, file by file, but for the wall clock's figures."""
    return {name: Path(name).read_bytes() for name in RESULTS}


def undisturbed_results(workspace: Workspace) -> dict[str, bytes]:
    """What a run of one process makes that nobody disturbs."""
    with contextlib.chdir(workspace.folder):
        clear()
        assert run_stage().code == 0
        return results()


@contextlib.contextmanager
def restored(*names: str) -> Iterator[None]:
    """Put these files back in the end as they are now."""
    before = {name: Path(name).read_bytes() for name in names}
    try:
        yield
    finally:
        for name, content in before.items():
            Path(name).write_bytes(content)


def only_run() -> Path:
    """The folder of the one run that there is."""
    (run,) = [path for path in Path(".runs").iterdir() if path.is_dir()]
    return run


class Ended(NamedTuple):
    """How a stage ended: its exit code, -9 for SIGKILL, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on stderr, which is an error's one sentence."""
        assert "Traceback" not in self.err, self.err
        last = self.err.strip().splitlines()[-1]
        assert last.startswith("error: "), self.err
        return last


class Stage:
    """The train stage in a process of its own, in the working directory; `sabotage(*arguments)` comes before.

    `sabotage` is a function of a module; what the stage prints goes to files.
    """

    def __init__(self, sabotage: Callable | None = None, *arguments):
        SERVER.set_forkserver_preload(["torch", "torch._dynamo", "matplotlib.pyplot", "pytest"])
        self._out, self._err = (Path(tempfile.mkstemp(dir=".", suffix=suffix)[1]) for suffix in (".out", ".err"))
        self.process = SERVER.Process(target=_run_stage, args=(Path.cwd(), self._out, self._err, sabotage, arguments))
        self.process.start()

    @property
    def err(self) -> str:
        """What it has printed on stderr so far."""
        return self._err.read_text()

    def end(self, timeout_s: float = 60) -> Ended:
        """Wait for its end; a stage that hangs is killed."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"the stage did not end within {timeout_s} s:\n{self.err}")
        return Ended(self.process.exitcode, self._out.read_text(), self.err)


def run_stage(sabotage: Callable | None = None, *arguments) -> Ended:
    """A stage to its end."""
    return Stage(sabotage, *arguments).end()


def _run_stage(folder: Path, out: Path, err: Path, sabotage: Callable | None, arguments: tuple) -> None:
    os.chdir(folder)
    os.environ.pop("DVC_ROOT", None)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    if sabotage is not None:
        sabotage(*arguments)
    sys.exit(train_stage.main(ARGUMENTS))


def hold_at(step: int) -> None:
    """A sabotage: after this step the stage writes `held` and waits for `go`."""
    train_steps = train_stage.train_steps

    def held_steps(*arguments):
        for number in train_steps(*arguments):
            if number == step:
                Path("held").write_text(str(os.getpid()))
                wait_for(Path("go").exists)
            yield number

    train_stage.train_steps = held_steps


def set_variable(name: str, value: str) -> None:
    """A sabotage: an environment variable."""
    os.environ[name] = value


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Return once it holds; AssertionError after the time."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s in vain"
        time.sleep(0.01)
