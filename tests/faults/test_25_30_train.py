"""Training and its states: killed, without disk, damaged, hostile, changed, diverged, stopped.

After each fault one and the same command ends with the bits of a run that was never disturbed.
"""

import hashlib
import io
import itertools
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from lm.core.files import sha256_file, write_json
from lm.model.weights import save_tensors
from lm.train import checkpoints
from lm.train.checkpoints import load_newest_state, save_state
from support.train_cases import (
    Stage,
    clear,
    hold_at,
    make_training,
    only_run,
    restored,
    results,
    run_stage,
    set_runtime,
    set_variable,
    undisturbed_results,
    wait_for,
)

# What tests change.
FILES = ["params.yaml", "runtime.yaml", "train.bin", "train.json", "src/lm/train/optimizers.py"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return make_training(tmp_path_factory.mktemp("training") / "ws")


@pytest.fixture(scope="module")
def undisturbed(template):
    return undisturbed_results(template)


@pytest.fixture
def workspace(template, undisturbed, monkeypatch):
    """The working directory: the small copy as it was for `undisturbed`, before any run."""
    monkeypatch.chdir(template.folder)
    clear()
    with restored(*FILES):
        yield template
    for name in ("held", "go", "ran"):
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)


def stop_after(step):
    """Run until the state of a step is saved, then kill -9; the last two states are there."""
    assert run_stage(die_in_state, step + 1, "torch.save", 1, "before").code == -signal.SIGKILL


def die_in_state(step, name, call, when):
    """A sabotage: kill -9 at the nth call of a function while the state of a step is saved."""
    save = checkpoints.save_state

    def armed(run, at, state):
        if at == step:
            die_at(name, call, when)
        save(run, at, state)
        assert at != step, f"{name} was not called {call} times"

    checkpoints.save_state = armed


def die_at(name, call, when):
    """A sabotage: kill -9 before, during (half of the file is written) or after the nth call of a function."""
    owner, attribute = pkgutil.resolve_name(name.rpartition(".")[0]), name.rpartition(".")[2]
    function, calls = getattr(owner, attribute), itertools.count(1)

    def dying(*arguments, **options):
        if next(calls) != call:
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


# ---------------------------------------------------------------- 25: kill -9

# Of a state, the first call, and then of its record, with which it counts.
PHASES = [
    ("torch.save", 1, "before"), ("torch.save", 1, "during"), ("torch.save", 1, "after"),
    ("os.fsync", 1, "before"), ("os.fsync", 1, "after"), ("os.replace", 1, "before"), ("os.replace", 1, "after"),
    ("os.fsync", 3, "before"), ("os.fsync", 3, "after"), ("os.replace", 2, "before"), ("os.replace", 2, "after"),
]  # fmt: skip
QUICK = [(3, PHASES[1]), (1, PHASES[6]), (3, PHASES[10])]
CASES = [
    pytest.param(step, *phase, marks=() if (step, phase) in QUICK else pytest.mark.slow)
    for step in (1, 3)
    for phase in PHASES
]


@pytest.mark.parametrize(("step", "name", "call", "when"), CASES)
def test_25_a_kill_in_any_phase_of_a_state_leaves_one_that_loads(workspace, undisturbed, step, name, call, when):
    assert run_stage(die_in_state, step, name, call, when).code == -signal.SIGKILL
    loaded = load_newest_state(only_run())
    saved = step if (name, call, when) == PHASES[-1] else step - 1
    assert (loaded["step"] if loaded else 0) == saved
    set_runtime(checkpoint_every_s=3600)
    ended = run_stage()
    assert ended.code == 0, ended.err
    assert (f"resumed at step {saved} " in ended.out) == bool(saved)
    assert results() == undisturbed
    assert [path.name for path in only_run().iterdir()] == ["done"]  # nothing of the killed one stays


@pytest.mark.slow
def test_25_a_kill_at_any_rename_of_a_run_changes_nothing(workspace, undisturbed):
    for number in itertools.count(1):
        clear()
        if run_stage(die_at, "os.replace", number, "after").code == 0:
            break
        assert run_stage().code == 0
        assert results() == undisturbed, f"after a kill at rename {number}"
    assert number > 20


def test_25_what_a_killed_save_left_is_not_counted_among_the_states_kept(tmp_path):
    for step in (2, 3):
        save_state(tmp_path, step, {"step": step})
    (tmp_path / "state-000000004.pt").write_bytes(b"renamed, but killed before its record")
    save_state(tmp_path, 5, {"step": 5})
    flip_a_bit(tmp_path / "state-000000005.pt")
    assert load_newest_state(tmp_path) == {"step": 3}


def test_25_a_kill_while_an_old_run_is_removed_leaves_none_by_half(workspace, undisturbed):
    assert run_stage().code == 0
    set_runtime(keep_fingerprints=1)
    peak_lr = workspace.get("train.peak_lr")
    workspace.change(**{"train.peak_lr": 0.001})
    assert run_stage(die_while_pruning).code == -signal.SIGKILL
    workspace.change(**{"train.peak_lr": peak_lr})
    for name in ("data/models", "metrics", "plots"):  # as DVC does before a stage
        shutil.rmtree(name)
    assert run_stage().code == 0
    assert results() == undisturbed


def die_while_pruning():
    prune = checkpoints.prune_runs

    def armed(*arguments):
        die_at("os.unlink", 3, "after")
        prune(*arguments)

    checkpoints.prune_runs = armed


# ---------------------------------------------------------------- 26: full disk, damaged states


def limit_files_from(step, size):
    """A sabotage: from the state of a step on no file can have more bytes than this."""
    save = checkpoints.save_state

    def limited(run, at, state):
        if at == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        save(run, at, state)

    checkpoints.save_state = limited


def check_full_disk(ended):
    """The error; the states that were there before, and no other file."""
    assert ended.code == 5
    assert "state-000000003.pt: " in ended.sentence and "free some space" in ended.sentence
    names = sorted(path.name for path in only_run().iterdir())
    assert names == [f"state-00000000{step}.{suffix}" for step in (1, 2) for suffix in ("json", "pt")]
    assert load_newest_state(only_run())["step"] == 2


@pytest.mark.parametrize("size", [4096, 60_000])
def test_26_a_state_that_cannot_be_written_ends_with_5_and_the_one_before_stays(workspace, undisturbed, size):
    check_full_disk(run_stage(limit_files_from, 3, size))
    assert run_stage().code == 0
    assert results() == undisturbed


@pytest.mark.slow
def test_26_a_full_disk(workspace, undisturbed):
    runs = Path(".runs")
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(runs)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root alone")
    try:
        ended = run_stage(fill_disk_at, 3)
        (runs / "filler").unlink()
        check_full_disk(ended)
        assert run_stage().code == 0
        assert results() == undisturbed
    finally:
        subprocess.run(["umount", runs], check=True)


def fill_disk_at(step):
    """A sabotage: when the state of a step is saved, 30 kB are left on the disk of .runs."""
    save = checkpoints.save_state

    def filling(run, at, state):
        if at == step:
            left = shutil.disk_usage(run).free - 30_000
            (run.parent / "filler").write_bytes(bytes(left))
        save(run, at, state)

    checkpoints.save_state = filling


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_26_a_damaged_newest_state_gives_way_to_the_one_before_with_a_warning(workspace, undisturbed):
    stop_after(3)
    flip_a_bit(only_run() / "state-000000003.pt")
    ended = run_stage()
    assert ended.code == 0 and "resumed at step 2 " in ended.out
    assert "warning: " in ended.err and "state-000000003.pt: sha256 is" in ended.err
    assert results() == undisturbed


DAMAGES = {
    "a flipped bit": flip_a_bit,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "an empty record": lambda path: path.with_suffix(".json").write_text(""),
    "a record of nothing": lambda path: path.with_suffix(".json").write_text("{}"),
}


def test_26_without_an_intact_state_nothing_starts_from_scratch(workspace, undisturbed):
    stop_after(3)
    run, kept = only_run(), Path("kept")
    shutil.copytree(run, kept)
    for name, damage in DAMAGES.items():
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        for path in run.glob("state-*.pt"):
            damage(path)
        ended = run_stage()
        assert ended.code == 4, name
        assert f"{run}: none of 2 states is intact; delete" in ended.sentence, name
    shutil.rmtree(kept)
    shutil.rmtree(run)
    assert run_stage().code == 0
    assert results() == undisturbed


def test_26_a_damaged_finished_run_is_not_published(workspace, undisturbed):
    assert run_stage().code == 0
    done = only_run() / "done"
    flip_a_bit(done / "models" / "best_model_params.pt")
    shutil.rmtree("data/models")
    ended = run_stage()
    assert ended.code == 4 and "best_model_params.pt: sha256 is" in ended.sentence
    assert not Path("data/models").exists()
    shutil.rmtree(only_run())
    assert run_stage().code == 0
    assert results() == undisturbed


# ---------------------------------------------------------------- 27: hostile and foreign files


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def hostile(value):
    return {**value, "payload": Payload()}


def another_shape(weights):
    """One entry less and one of another shape."""
    return {name: weights[name] for name in weights if name != "embed_tokens.weight"} | {"norm.weight": torch.ones(3)}


def replace_states(change):
    """Both states of the run become change(the newest), with records that are right."""
    value = change(load_newest_state(only_run()))
    for step in (2, 3):
        save_state(only_run(), step, value)


SWITCH = [(), (set_variable, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")]


@pytest.mark.parametrize("switch", SWITCH)
def test_27_a_hostile_state_never_runs(workspace, switch):
    stop_after(3)
    replace_states(hostile)
    ended = run_stage(*switch)
    assert ended.code == 4 and "none of 2 states is intact" in ended.sentence
    assert "refused by torch.load(weights_only=True)" in ended.err
    assert not Path("ran").exists()
    torch.load(next(only_run().glob("*.pt")), weights_only=False)
    Path("ran").rmdir()  # the payload works


def test_27_a_state_of_another_shape_is_refused_by_the_names_that_differ(workspace):
    stop_after(3)
    replace_states(lambda state: state | {"model": another_shape(state["model"])})
    ended = run_stage()
    assert ended.code == 4
    assert "norm.weight" in ended.sentence and "embed_tokens.weight" in ended.sentence


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (hostile, ["refused by torch.load(weights_only=True)"]),
        (another_shape, ["norm.weight", "embed_tokens.weight"]),
        (lambda weights: weights | {"more": torch.ones(1)}, ["more"]),
        (list, ["best_model_params.pt"]),
        (None, ["sha256 is", "its record says"]),
    ],
)
@pytest.mark.parametrize("switch", SWITCH)
def test_27_a_model_to_begin_with_is_refused(workspace, undisturbed, change, sentences, switch):
    """By the function with which every reader of data/models loads it."""
    path = Path("other/best_model_params.pt")
    path.parent.mkdir()
    for name in undisturbed:
        if name.startswith("data/models"):
            Path("other", Path(name).name).write_bytes(undisturbed[name])
    if change is None:
        flip_a_bit(path)
    else:
        record = json.loads((path.parent / "model.json").read_text())
        record["best"]["sha256"] = save_tensors(path, change(torch.load(path, weights_only=True)))
        write_json(path.parent / "model.json", record)
    workspace.change(**{"train.init_from": "other"})
    ended = run_stage(*switch)
    shutil.rmtree(path.parent)
    assert ended.code == 4 and "other/best_model_params.pt" in ended.sentence
    assert all(sentence in ended.sentence for sentence in sentences), ended.sentence
    assert not Path("ran").exists()


# ---------------------------------------------------------------- 28: something changed


def change_param(workspace):
    workspace.change(**{"train.peak_lr": 0.001})


def change_data(workspace):
    path = Path("train.json")
    content = Path("train.bin").read_bytes()
    Path("train.bin").write_bytes(content[2:] + content[:2])
    path.write_text(path.read_text().replace(sha256_of(content), sha256_file("train.bin")))


def change_code(workspace):
    path = Path("src/lm/train/optimizers.py")
    path.write_text(path.read_text() + "# changed\n")


def sha256_of(content):
    return hashlib.sha256(content).hexdigest()


def test_28_what_changed_begins_a_run_of_its_own_and_changing_back_goes_on(workspace, undisturbed):
    stop_after(3)
    for change in (change_param, change_data, change_code):
        with restored(*FILES):
            change(workspace)
            ended = run_stage(die_in_state, 1, "torch.save", 1, "before")
        assert ended.code == -signal.SIGKILL and "resumed" not in ended.out, change.__name__
    ended = run_stage()
    assert ended.code == 0 and "resumed at step 3 " in ended.out
    assert results() == undisturbed


# ---------------------------------------------------------------- 29: diverged


def test_29_a_loss_that_is_not_finite_ends_with_6_and_the_best_model_is_kept(workspace, undisturbed):
    before = {name: workspace.get(name) for name in ("train.peak_lr", "train.divergence_nats")}
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})
    set_runtime(checkpoint_every_s=3600)
    for _ in range(2):
        ended = run_stage()
        assert ended.code == 6
        assert "training diverged at step 1: loss " in ended.sentence
        assert "gradient norm nan, windows [" in ended.sentence and "lower train.peak_lr" in ended.sentence
    state = load_newest_state(only_run())
    assert (state["step"], state["best_step"]) == (1, 0)
    assert all(weight.isfinite().all() for weight in state["best_weights"].values())
    for path in Path("metrics").glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    workspace.change(**before)
    assert run_stage().code == 0
    assert results() == undisturbed


def test_29_a_run_that_diverged_does_not_go_on_past_it(workspace):
    workspace.change(**{"train.peak_lr": 3.0, "train.divergence_nats": 0.1})
    first, second = run_stage(), run_stage()
    assert first.code == second.code == 6
    assert "training diverged at step 4: loss " in first.sentence == second.sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_29_no_metric_is_written_that_strict_json_lacks(tmp_path, value):
    write_json(tmp_path / "train.json", {"loss": 2.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "train.json", {"loss": [value]})
    assert json.loads((tmp_path / "train.json").read_text()) == {"loss": 2.5}
    assert len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- 30: stopped


@pytest.fixture
def only_stopping_saves(workspace):
    """No state is saved but by a stage that is asked to stop."""
    set_runtime(checkpoint_every_s=3600)
    return workspace


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_30_a_signal_saves_the_state_and_the_next_run_goes_on(only_stopping_saves, undisturbed, number, code):
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    os.kill(stage.process.pid, number)
    Path("go").touch()
    ended = stage.end()
    assert ended.code == code
    assert f"training stopped at step 3 ({number.name}); its state is saved" in ended.sentence
    assert not Path("data/models").exists()
    ended = run_stage()
    assert ended.code == 0 and "resumed at step 3 " in ended.out
    assert results() == undisturbed


def test_30_a_second_signal_leaves_at_once(only_stopping_saves, undisturbed):
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    os.kill(stage.process.pid, signal.SIGTERM)
    wait_for(lambda: "once more to leave at once" in stage.err)
    os.kill(stage.process.pid, signal.SIGINT)
    ended = stage.end()
    assert ended.code == 130
    assert "left at once (SIGINT)" in ended.sentence and "`dvc repro`" in ended.sentence
    assert load_newest_state(only_run()) is None
    assert run_stage().code == 0
    assert results() == undisturbed


def test_30_a_stage_whose_parent_is_gone_leaves_and_never_are_there_two_writers(only_stopping_saves, undisturbed):
    stage = Stage(in_a_child, 3)
    wait_for(Path("held").exists)
    stage.process.kill()
    ended = run_stage()
    assert ended.code == 75
    assert f"data/models: process {Path('held').read_text()} is writing it" in ended.sentence
    Path("go").touch()
    wait_for(lambda: "error: " in stage.err)
    assert "training stopped at step 3 (the process that started it is gone); its state is saved" in stage.err
    ended = run_stage()
    assert ended.code == 0 and "resumed at step 3 " in ended.out
    assert results() == undisturbed


def in_a_child(step):
    """A sabotage: the stage runs in a child of its process, which does nothing but wait."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    hold_at(step)


def test_30_the_same_run_in_another_copy_waits_and_is_served(workspace, undisturbed, tmp_path, monkeypatch):
    """Queued experiments share .runs and may differ in what is no part of the run."""
    stage = Stage(hold_at, 3)
    wait_for(Path("held").exists)
    copy = shutil.copytree(workspace.folder, tmp_path / "copy", ignore=shutil.ignore_patterns(".runs"))
    monkeypatch.chdir(copy)
    other = Stage(set_variable, "DVC_ROOT", str(workspace.folder))
    wait_for(lambda: f": waiting for process {stage.process.pid}" in other.err)
    (workspace.folder / "go").touch()
    ended = other.end()
    assert ended.code == 0 and "parameters" not in ended.out  # not a step was computed here
    assert results() == undisturbed
    assert not Path(".runs").exists()
    assert stage.end().code == 0
