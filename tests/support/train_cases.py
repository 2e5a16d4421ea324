"""A folder in which the real train stage ends within a second, and processes in which it can be interrupted.

`Stage` forks from a process that has imported torch once, so that a killed stage costs little.
"""

import contextlib
import functools
import importlib
import io
import itertools
import multiprocessing
import os
import pkgutil
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import train as train_stage
from lm.tokens.tokenfile import write_tokens
from lm.train import checkpoints, fingerprint
from support.process import AT_END, CAP_S, end_group, wait_for
from support.stages import change_params, run_here
from support.workspace import Workspace

ARGUMENTS = shlex.split(
    "--train train.bin --validation validation.bin --tokenizer data/tokenizer"
    " --models data/models --metrics metrics --plots plots"
)
TOKENS = Path("data/processed_datasets")
TOKENIZER = {"kind": "bpe", "vocab_size": 50, "eot_id": 49, "sha256": "ab" * 32}
RESULTS = [
    "data/models/best_model_params.pt", "data/models/last_model_params.pt", "data/models/model.json",
    "plots/training.csv", "plots/validation.csv", "metrics/train.json",
]  # fmt: skip
PRELOADED = [
    "torch._dynamo", "matplotlib.pyplot", "pandas", "pyarrow.parquet", "tiktoken", "tokenizers",
    "fetch", "make_tokenizer", "tokenize_split", "audit", "eval", "plot", "support.preloaded",
]  # fmt: skip
SERVER = multiprocessing.get_context("forkserver")


def write_ids(name, count, tokenizer=TOKENIZER):
    """Write a token file of a fixed cycle."""
    ids = (np.arange(count) * 7919 % 61 % 49).astype(np.uint16)
    text = {"source": {"name": "cycle"}, "slice": {"split": Path(name).stem}}
    meta = {"documents": 1, "utf8_bytes": count, "tokenizer": tokenizer, **text}
    write_tokens(Path(name), [ids], "uint16", lambda: meta)


def make_training(folder: Path) -> Workspace:
    """Make a small copy with token files.

    It has 8 steps, a sampled vocabulary, a log row every 2 steps, a validation every 4, a checkpoint every step.
    """
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.change(
        **{
            "train.max_tokens": 512 * 8,
            "train.eval_every_tokens": 2048,
            "train.sampled_vocab_size": 25,
            "train.ngram_buckets": None,
        }
    )
    with contextlib.chdir(folder):
        set_runtime(checkpoint_every_s=0)
        write_ids("train.bin", 3000)
        write_ids("validation.bin", 700)
    return workspace


@contextlib.contextmanager
def fresh_training(workspace: Workspace, **runtime) -> Iterator[None]:
    """Work in the folder of `workspace`, without what earlier runs have made.

    `runtime` has settings of the section `train` of runtime.yaml. The end restores the parameter files.
    """
    with contextlib.chdir(workspace.folder):
        clear()
        with restored("params.yaml", "presets.yaml", "runtime.yaml"):
            set_runtime(**runtime)
            yield


def make_finished_run(folder: Path) -> Workspace:
    """Make a small copy in which a run of 20 steps has finished, with the paths of dvc.yaml.

    It has validations at 5, 10, 15 and 20, and checkpoints. It computes in fast numerics: threads change its bits, and
    no loops are compiled.
    """
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.change(**{"train.eval_every_tokens": 2560, "train.ngram_buckets": None, "train.numerics": "fast"})
    with contextlib.chdir(folder):
        TOKENS.mkdir(parents=True, exist_ok=True)
        write_ids(TOKENS / "train.bin", 3000)
        write_ids(TOKENS / "validation.bin", 700)
        train_with_paths_of_pipeline()
    return workspace


# The functions below work in the current directory.


def train_with_paths_of_pipeline() -> None:
    """Run the stage on the files of data/, without a run folder of before."""
    shutil.rmtree(".runs", ignore_errors=True)
    assert run_here("train") == 0


def set_runtime(**values) -> None:
    """Change the section `train` of runtime.yaml."""
    change_params(Path(), {f"train.{name}": value for name, value in values.items()}, "runtime.yaml")


def clear() -> None:
    """Delete everything that runs and sabotages have made."""
    for name in (".runs", "data/models", "metrics", "plots"):
        shutil.rmtree(name, ignore_errors=True)
    for path in [*Path().glob("held*"), Path("writing"), Path("go")]:
        path.unlink(missing_ok=True)


def results() -> dict[str, bytes]:
    """Return the files that a run has made, without those that hold wall-clock time."""
    return {name: Path(name).read_bytes() for name in RESULTS}


@contextlib.contextmanager
def restored(*names: str | Path) -> Iterator[None]:
    """Restore these files at the end."""
    paths = [Path(name).absolute() for name in names]
    before = {path: path.read_bytes() for path in paths}
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def only_run() -> Path:
    """Return the folder of the only run."""
    (run,) = [path for path in Path(".runs").iterdir() if path.is_dir()]
    return run


def newest_step() -> int:
    """Return the step of the newest intact checkpoint of the only run, 0 if there is none."""
    loaded = checkpoints.load_newest_checkpoint(only_run())
    return loaded["step"] if loaded else 0


class Ended(NamedTuple):
    """The end of a stage: exit code, -9 for SIGKILL, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Return the last line on stderr, an error's one sentence."""
        assert "Traceback" not in self.err, self.err
        last = self.err.strip().splitlines()[-1]
        assert last.startswith("error: "), self.err
        return last


@functools.cache
def start_server() -> None:
    """Start the process from which stages are forked. It has imported what they need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        SERVER.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()


class Stage:
    """A stage, by default train, in a process of its own, in the current directory, after `sabotage(*arguments)`.

    `sabotage` is a function of a module; `command` is the stage's module and its arguments. What the stage prints goes
    to files. The end of the test ends the stage, and its children with it.
    """

    def __init__(self, sabotage: Callable | None = None, *arguments, command=("train", ARGUMENTS)):
        start_server()
        printed = Path(AT_END.enter_context(tempfile.TemporaryDirectory()))
        self._out, self._err = printed / "out", printed / "err"
        self._err.touch()
        begin = (Path.cwd(), self._out, self._err, sabotage, arguments, *command)
        self.process = SERVER.Process(target=_run_stage, args=begin)
        self.process.start()
        AT_END.callback(self.process.join, CAP_S)
        AT_END.callback(end_group, self.process.pid)

    @property
    def err(self) -> str:
        """Return what the stage has printed on stderr so far."""
        return self._err.read_text()

    def end(self) -> Ended:
        """Wait for the end of the stage."""
        self.process.join(CAP_S)
        assert self.process.exitcode is not None, f"the stage did not end within {CAP_S} s:\n{self.err}"
        return Ended(self.process.exitcode, self._out.read_text(), self.err)


def run_stage(sabotage: Callable | None = None, *arguments, **stage) -> Ended:
    """Run a stage to its end."""
    return Stage(sabotage, *arguments, **stage).end()


def check_rerun(undisturbed: dict[str, bytes], *printed: str) -> None:
    """Check that a run prints these words and ends with the results of an undisturbed one."""
    ended = run_stage()
    assert ended.code == 0, ended.err
    assert [words for words in printed if words not in ended.out] == []
    assert results() == undisturbed


def _run_stage(
    folder: Path, out: Path, err: Path, sabotage: Callable | None, arguments: tuple, module: str, argv: list[str]
) -> None:
    os.setsid()
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.chdir(folder)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    fingerprint.SOURCE = folder / "src"  # the copy's code counts, which tests change
    if sabotage is not None:
        sabotage(*arguments)
    sys.exit(importlib.import_module(module).main(argv))


def _end_with_the_tests() -> None:
    """End this stage and its children when the process of the tests has ended, even if it was killed."""
    multiprocessing.parent_process().join()
    os.killpg(0, signal.SIGKILL)


def at_step(step: int, action: Callable) -> None:
    """A sabotage: call `action()` after the update of this step."""
    update_weights = train_stage.step.update_weights

    def update(state, lr):
        update_weights(state, lr)
        if state.step == step:
            action()

    train_stage.step.update_weights = update


def hold_at(step: int) -> None:
    """A sabotage: after this step the stage writes its process id into `held` and waits for the file `go`.

    Of ranks that a stage started, each writes `held<rank>`.
    """

    def hold() -> None:
        held = Path(f"held{os.environ.get('RANK', '')}")
        held.with_suffix(".tmp").write_text(str(os.getpid()))
        held.with_suffix(".tmp").rename(held)
        wait_for(Path("go").exists)

    at_step(step, hold)


# Kills and damages.


def in_state(step: int, sabotage: Callable, *arguments) -> None:
    """A sabotage: run another one when the checkpoint of this step is saved."""
    save = checkpoints.save_checkpoint

    def armed(run, at, state, retained):
        if at == step:
            sabotage(*arguments)
        save(run, at, state, retained)

    checkpoints.save_checkpoint = armed


def beside_training(sabotage: Callable | None = None, *arguments) -> None:
    """A sabotage: a thread writes the checkpoints, as on a GPU; then run another one, if it is given."""
    writer = train_stage.CheckpointWriter
    gpu = torch.device("cuda")
    train_stage.CheckpointWriter = lambda run, retained, device: writer(run, retained, gpu)
    if sabotage is not None:
        sabotage(*arguments)


def write_slowly(seconds: float, sabotage: Callable, *arguments) -> None:
    """A sabotage: it takes longer to write a checkpoint, which begins with the file `writing`; then run another one."""
    save = checkpoints.save_checkpoint

    def slower(*given):
        Path("writing").touch()
        time.sleep(seconds)
        save(*given)

    checkpoints.save_checkpoint = slower
    sabotage(*arguments)


def die_at(name, call, when):
    """A sabotage: kill -9 before, during (half of the file is written) or after the nth call of a function.

    Calls in the thread of the sabotage count alone.
    """
    thread = threading.get_ident()
    owner_name, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    function = getattr(owner, attribute)
    calls = itertools.count(1)

    def dying(*arguments, **options):
        if threading.get_ident() != thread or next(calls) != call:
            return function(*arguments, **options)
        if when == "during":
            write_half(function, *arguments)
        if when == "after":
            function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, attribute, dying)


def write_half(save, value, file):
    whole = io.BytesIO()
    save(value, whole)
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
