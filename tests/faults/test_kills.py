"""Stages that are killed, asked to stop, or find no space; the same command then ends with the same bytes.

The training run of `workspace` has eight steps and a checkpoint at each; it is best at step 4 and not at the last.
"""

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

import tokenize_split
from lm.core.files import output_lock
from support.process import CAP_S, GENERIC, living_members, wait_for
from support.refusal import files_below, refused
from support.stages import module_and_arguments, outputs_of, run_here
from support.train_cases import (
    ARGUMENTS,
    Stage,
    at_step,
    beside_training,
    check_rerun,
    die_at,
    hold_at,
    in_state,
    newest_step,
    only_run,
    results,
    run_stage,
    set_runtime,
    write_slowly,
)


def saved_checkpoints(folder: Path) -> set[str]:
    """Return the names of the checkpoints that runs in a folder have saved."""
    return {path.name for path in folder.glob(".runs/*/checkpoint-*.json")}


def set_variable(name: str, value: str) -> None:
    """A sabotage: set an environment variable."""
    os.environ[name] = value


def in_a_child(sabotage: Callable, *arguments) -> None:
    """A sabotage: run another one and the stage in a child process; this process only waits for it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    sabotage(*arguments)


def die_at_any(call):
    """A sabotage: kill -9 before that call of the functions that make a file permanent."""
    calls = itertools.count(1)

    def dying(function):
        def counted(*arguments):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return counted

    os.fsync = dying(os.fsync)
    os.replace = dying(os.replace)


def limit_files(num_bytes):
    """A sabotage: no file can have more bytes, which stands in for a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def outputs(stage: str) -> dict[str, bytes]:
    """Return path → content of what is there of a stage's outputs."""
    names = tuple(outputs_of(stage))
    return {path: content for path, content in files_below(Path()).items() if path.startswith(names)}


def remove_outputs(stage: str) -> None:
    """Remove what is there of a stage's outputs, as DVC does before it runs the stage."""
    for path in map(Path, outputs_of(stage)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# kill -9

OTHER_STAGES = [
    pytest.param(stage, marks=pytest.mark.slow) for stage in ("fetch", "make_tokenizer", "audit", "eval", "plot")
]


@pytest.mark.parametrize("stage", ["tokenize_train", *OTHER_STAGES])
def test_a_stage_killed_before_any_sync_or_rename_leaves_no_part_of_an_output(project, stage):
    whole = outputs(stage)
    before = files_below(Path()).keys()

    for call in range(1, 60):
        remove_outputs(stage)
        ended = run_stage(die_at_any, call, command=module_and_arguments(stage))
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.err
        assert outputs(stage).items() <= whole.items()

    assert call > 4
    assert outputs(stage) == whole
    assert files_below(Path()).keys() == before, "temporary files of the killed processes are removed"


SAVE = "torch.save"
RENAME = "os.replace"
# The moment of the kill, and the step from which the run goes on. A checkpoint is written under a temporary name and
# renamed, then its record, with which it counts.
MOMENTS = {
    "while the first checkpoint is written": (in_state, 1, die_at, SAVE, 1, "during", 0),
    "while a checkpoint is written": (in_state, 3, die_at, SAVE, 1, "during", 2),
    "while a thread writes a checkpoint, as on a GPU": (beside_training, in_state, 3, die_at, SAVE, 1, "during", 2),
    "between the rename of a checkpoint and its record": (in_state, 3, die_at, RENAME, 1, "after", 2),
    "after the record of a checkpoint": (in_state, 3, die_at, RENAME, 2, "after", 3),
    "while the weights are scored": (die_at, "lm.train.step.validation_loss", 2, "before", 3),
    "after the best weights were found": (in_state, 6, die_at, SAVE, 1, "during", 5),
    "after the last step": (die_at, "lm.train.outputs.save_models", 1, "before", 8),
    "between the results and their publication": (die_at, "train.publish", 1, "before", None),
}

# The checkpoints between the first and the last validation, and from which on the learning rate falls.
STAYING = {"checkpoint-000000003.json", "checkpoint-000000004.json"}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_training_run_killed_at_a_moment_ends_with_the_bits_of_an_undisturbed_one(workspace, undisturbed, moment):
    *sabotage, step = MOMENTS[moment]

    assert run_stage(*sabotage).code == -signal.SIGKILL

    if step is not None:
        assert newest_step() == step
    check_rerun(undisturbed, first_words(step))
    left = {path.suffix or path.name for path in only_run().iterdir()}
    assert left == {"done", "last_use", ".pt", ".json"}
    assert saved_checkpoints(Path()) == STAYING


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_instructions_of_another_processor(workspace, undisturbed):
    assert run_stage(in_state, 3, die_at, SAVE, 1, "during").code == -signal.SIGKILL

    command = [sys.executable, "src/train.py", *ARGUMENTS]
    done = subprocess.run(command, env=os.environ | GENERIC, capture_output=True, text=True, check=True)

    assert "resumed at step 2 " in done.stdout
    assert results() == undisturbed


def first_words(step: int | None) -> str:
    """Return what a run says that goes on from a step; None if it is finished."""
    if step is None:
        return "this run is already finished"
    return "step 0 of 8" if step == 0 else f"resumed at step {step} "


def test_a_kill_while_an_old_run_is_removed_leaves_none_by_half(workspace, undisturbed):
    assert run_stage().code == 0
    set_runtime(keep_fingerprints=1)
    peak_lr = workspace.get("train.peak_lr")
    workspace.change(**{"train.peak_lr": 0.001})

    assert run_stage(die_at, "os.unlink", 3, "after").code == -signal.SIGKILL

    assert list(Path(".runs").glob(".*.tmp")), "a part of the old run"
    workspace.change(**{"train.peak_lr": peak_lr})
    for name in ("data/models", "metrics", "plots"):  # as DVC does before a stage
        shutil.rmtree(name)
    check_rerun(undisturbed)


def encode_in_processes() -> None:
    """A sabotage: encode in processes, as for a tokenizer of Hugging Face's, and wait before the ids are written."""

    def hold(path, ids, *others):
        next(ids)
        Path("held").touch()
        wait_for(lambda: False)

    tokenize_split.open_gigatoken = lambda tokenizer: None
    tokenize_split.write_tokens = hold


@pytest.mark.slow
def test_workers_end_with_a_killed_stage(project):
    remove_outputs("tokenize_train")
    stage = Stage(encode_in_processes, command=module_and_arguments("tokenize_train"))
    wait_for(Path("held").exists)
    assert len(living_members(stage.process.pid)) > 1

    stage.process.kill()

    assert stage.end().code == -signal.SIGKILL
    wait_for(lambda: not living_members(stage.process.pid))
    assert outputs("tokenize_train") == {}


# No space


@pytest.mark.parametrize(("stage", "num_bytes"), [("fetch", 500), ("tokenize_train", 500), ("eval", 1000)])
def test_a_write_that_fails_keeps_the_old_output(project, stage, num_bytes):
    before = files_below(Path())

    ended = run_stage(limit_files, num_bytes, command=module_and_arguments(stage))

    refused(ended.code, ended.err, 5, outputs_of(stage)[0], "File too large; free some space on")
    assert files_below(Path()) == before
    assert run_here(stage) == 0


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(workspace, undisturbed):
    ended = run_stage(in_state, 3, limit_files, 4096)

    refused(ended.code, ended.err, 5, "checkpoint-000000003.pt: ", "free some space")
    assert newest_step() == 2
    assert not list(only_run().glob(".*"))
    check_rerun(undisturbed, "resumed at step 2 ")


def fail_in_a_thread(step: int) -> None:
    """A sabotage: a thread cannot write the checkpoint of this step, and has found that out two steps later."""
    submit = ThreadPoolExecutor.submit
    writing = []

    def noted(*given):
        writing.append(submit(*given))
        return writing[-1]

    ThreadPoolExecutor.submit = noted
    beside_training(in_state, step, limit_files, 4096)
    at_step(step + 2, lambda: wait(writing))


def test_a_run_does_not_go_on_after_a_checkpoint_that_a_thread_cannot_write(workspace):
    set_runtime(checkpoint_every_s=3600, keep_checkpoints=1)  # so that none is written after step 4

    ended = run_stage(fail_in_a_thread, 4)

    refused(ended.code, ended.err, 5, "checkpoint-000000004.pt: ", "free some space")
    rows = Path("plots/validation.csv").read_text().splitlines()[1:]
    validated = [int(row.split(",")[0]) for row in rows]
    assert validated == [0, 4]


def test_results_that_cannot_be_published_are_kept(workspace, undisturbed):
    assert run_stage().code == 0

    ended = run_stage(limit_files, 4096)

    refused(ended.code, ended.err, 5, "data/models: File too large; free some space on")
    check_rerun(undisturbed, "this run is already finished")


# Signals, and two at once


@pytest.fixture
def only_stopping_saves(workspace):
    """No checkpoint is saved but by a stage that is asked to stop."""
    set_runtime(checkpoint_every_s=3600)


def start_and_hold(*sabotage) -> Stage:
    """Start the training run, and return when it has come to the step at which it is held."""
    stage = Stage(*sabotage)
    wait_for(Path("held").exists)
    return stage


@pytest.mark.parametrize(
    ("number", "code", "writer"),
    [
        pytest.param(signal.SIGINT, 130, (), id="the run itself"),
        pytest.param(signal.SIGTERM, 143, (beside_training, write_slowly, 1.5), id="a thread"),
        pytest.param(signal.SIGUSR1, 138, (), id="a cluster"),
    ],
)
def test_a_signal_saves_a_checkpoint_and_the_next_run_goes_on(only_stopping_saves, undisturbed, number, code, writer):
    """A stop waits for the thread that writes the checkpoint."""
    stage = start_and_hold(*writer, hold_at, 5)

    os.kill(stage.process.pid, number)
    Path("go").touch()
    ended = stage.end()

    refused(ended.code, ended.err, code, f"training stopped at step 5 ({number.name}); a checkpoint is saved")
    assert newest_step() == 5
    assert not Path("data/models").exists()
    check_rerun(undisturbed, "resumed at step 5 ")


def close_terminal(step: int, handler: signal.Handlers) -> None:
    """A sabotage: after this step the terminal is closed, of which the system and the shell tell the process."""
    signal.signal(signal.SIGHUP, handler)
    at_step(step, lambda: [os.kill(os.getpid(), signal.SIGHUP) for _ in range(2)])


@pytest.mark.parametrize(
    ("handler", "code", "then"),
    [
        pytest.param(signal.SIG_DFL, 129, "resumed at step 5 ", id="stops"),
        pytest.param(signal.SIG_IGN, 0, "this run is already finished", id="nohup"),
    ],
)
def test_a_closed_terminal_saves_a_checkpoint_except_under_nohup(only_stopping_saves, undisturbed, handler, code, then):
    ended = run_stage(close_terminal, 5, handler)

    assert ended.code == code
    check_rerun(undisturbed, then)


@pytest.mark.slow
@pytest.mark.parametrize("waits_for", ["the step", "the thread"])
def test_a_second_signal_leaves_at_once(only_stopping_saves, undisturbed, waits_for):
    stage = start_and_hold(beside_training, write_slowly, CAP_S, hold_at, 3)
    os.kill(stage.process.pid, signal.SIGTERM)
    wait_for(lambda: "send the signal again" in stage.err)
    if waits_for == "the thread":
        Path("go").touch()
        wait_for(Path("writing").exists)

    os.kill(stage.process.pid, signal.SIGINT)
    ended = stage.end()

    refused(ended.code, ended.err, 130, "stopped at once (SIGINT)", "run the same command again")
    assert newest_step() == 0
    check_rerun(undisturbed)


def lose_readers(step: int) -> None:
    """A sabotage: after this step nobody reads what the stage prints any more, and SIGTERM comes.

    So it is when Ctrl-C ends the `tee` of `2>&1 | tee log.txt`.
    """

    def lose() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        for descriptor in (1, 2):
            os.dup2(writer, descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    at_step(step, lose)


def test_a_signal_before_a_validation_saves_a_checkpoint_though_nobody_reads(only_stopping_saves, undisturbed):
    ended = run_stage(lose_readers, 4)

    assert ended.code == 143
    assert newest_step() == 4
    check_rerun(undisturbed, "resumed at step 4 ")


def test_a_stage_goes_on_when_its_parent_ends_and_never_are_there_two_writers(workspace, undisturbed):
    stage = start_and_hold(in_a_child, hold_at, 3)
    writer = Path("held").read_text()
    stage.process.kill()

    second = run_stage()

    refused(second.code, second.err, 75, f"data/models: process {writer} is writing it")
    assert not Path("data/models").exists()

    Path("go").touch()
    with output_lock("data/models", wait=True):  # until the stage ends
        assert results() == undisturbed
        assert "error: " not in stage.err
    check_rerun(undisturbed, "this run is already finished")


@pytest.mark.slow
def test_the_same_run_in_another_copy_waits_and_is_served(workspace, undisturbed, monkeypatch):
    """Queued experiments share .runs and may differ in what is not a part of the run."""
    stage = start_and_hold(hold_at, 3)
    copy = workspace.folder / ".dvc/tmp/exps/tmp1"
    shutil.copytree(workspace.folder, copy, ignore=shutil.ignore_patterns(".runs", ".dvc"))
    monkeypatch.chdir(copy)

    other = Stage(set_variable, "DVC_ROOT", str(workspace.folder))
    wait_for(lambda: f": waiting for process {stage.process.pid}" in other.err)
    (workspace.folder / "go").touch()
    ended = other.end()

    assert ended.code == 0
    assert "parameters" not in ended.out, "not a step was computed here"
    assert results() == undisturbed
    assert not Path(".runs").exists()
    assert stage.end().code == 0
