"""Training that is killed at any moment, finds no space on the disk, or finds damaged checkpoints.

After each fault the same command ends with the bits of an undisturbed run.
"""

import shutil
import signal
from pathlib import Path

import pytest

from lm.core.errors import IntegrityError
from lm.train.checkpoints import load_newest_checkpoint, save_checkpoint
from lm.train.outputs import publish
from support.damage import DAMAGES, edit, flip
from support.train_cases import (
    check_rerun,
    die_at,
    in_call,
    in_state,
    limit_files,
    only_run,
    restored,
    results,
    run_stage,
    set_runtime,
    stop_after,
)

CHANGED = ["params.yaml", "runtime.yaml"]  # by tests


# ---------------------------------------------------------------- 25: kill -9

# Of a state, the first call, and then of its record, with which it counts.
PHASES = [
    ("torch.save", 1, "before"), ("torch.save", 1, "during"), ("torch.save", 1, "after"),
    ("os.fsync", 1, "before"), ("os.fsync", 1, "after"), ("os.replace", 1, "before"), ("os.replace", 1, "after"),
    ("os.fsync", 3, "before"), ("os.fsync", 3, "after"), ("os.replace", 2, "before"), ("os.replace", 2, "after"),
]  # fmt: skip
# The checkpoint between the validations stays, and the one from which on the learning rate falls.
STAYING = [f"checkpoint-00000000{step}.{suffix}" for step in (3, 4) for suffix in ("json", "pt")]
FINISHED = [*STAYING, "done", "run.json", "timing.json"]
QUICK = [(3, PHASES[1]), (3, PHASES[10])]
CASES = [
    pytest.param(step, *phase, marks=() if (step, phase) in QUICK else pytest.mark.slow)
    for step in (1, 3)
    for phase in PHASES
]


@pytest.mark.parametrize(("step", "name", "call", "when"), CASES)
def test_25_a_kill_in_any_phase_of_a_state_leaves_one_that_loads(workspace, undisturbed, step, name, call, when):
    assert run_stage(in_state, step, die_at, name, call, when).code == -signal.SIGKILL
    loaded = load_newest_checkpoint(only_run())
    saved = step if (name, call, when) == PHASES[-1] else step - 1
    assert (loaded["step"] if loaded else 0) == saved
    set_runtime(checkpoint_every_s=3600)
    ended = run_stage()
    assert ended.code == 0, ended.err
    assert (f"resumed at step {saved} " in ended.out) == bool(saved)
    assert results() == undisturbed
    assert sorted(path.name for path in only_run().iterdir()) == FINISHED  # nothing of the killed one stays


def test_25_what_a_killed_save_left_is_not_counted_among_the_states_kept(tmp_path):
    for step in (2, 3):
        save_checkpoint(tmp_path, step, {"step": step})
    (tmp_path / "checkpoint-000000004.pt").write_bytes(b"renamed, but killed before its record")
    save_checkpoint(tmp_path, 5, {"step": 5})
    flip(tmp_path / "checkpoint-000000005.pt")
    assert load_newest_checkpoint(tmp_path) == {"step": 3}


def test_25_a_kill_while_an_old_run_is_removed_leaves_none_by_half(workspace, undisturbed):
    assert run_stage().code == 0
    set_runtime(keep_fingerprints=1)
    peak_lr = workspace.get("train.peak_lr")
    workspace.change(**{"train.peak_lr": 0.001})
    assert run_stage(in_call, "prune_runs", die_at, "os.unlink", 3, "after").code == -signal.SIGKILL
    workspace.change(**{"train.peak_lr": peak_lr})
    for name in ("data/models", "metrics", "plots"):  # as DVC does before a stage
        shutil.rmtree(name)
    check_rerun(undisturbed)


# ---------------------------------------------------------------- 26: full disk, damaged checkpoints


def test_26_a_state_that_cannot_be_written_ends_with_5_and_the_one_before_stays(workspace, undisturbed):
    ended = run_stage(in_state, 3, limit_files, 4096)
    assert ended.code == 5
    assert "checkpoint-000000003.pt: " in ended.sentence and "free some space" in ended.sentence
    names = sorted(path.name for path in only_run().iterdir())
    states = [f"checkpoint-00000000{step}.{suffix}" for step in (1, 2) for suffix in ("json", "pt")]
    assert names == [*states, "run.json", "timing.json"]
    assert load_newest_checkpoint(only_run())["step"] == 2
    check_rerun(undisturbed)


def test_26_results_that_cannot_be_published_end_with_5_and_a_sentence(workspace, undisturbed):
    assert run_stage().code == 0
    ended = run_stage(limit_files, 4096)
    assert ended.code == 5 and ended.sentence.startswith("error: data/models: File too large; free some space on")
    check_rerun(undisturbed)


def test_26_a_damaged_newest_state_gives_way_to_the_one_before_with_a_warning(workspace, undisturbed):
    stop_after(3)
    flip(only_run() / "checkpoint-000000003.pt")
    ended = run_stage()
    assert ended.code == 0 and "resumed at step 2 " in ended.out
    assert "warning: " in ended.err and "checkpoint-000000003.pt: sha256 is" in ended.err
    assert results() == undisturbed


RECORDS = {
    "an empty record": lambda path: path.with_suffix(".json").write_text(""),
    "a record of nothing": lambda path: path.with_suffix(".json").write_text("{}"),
}


def test_26_without_an_intact_state_nothing_starts_from_scratch(workspace, undisturbed):
    stop_after(3)
    run, kept = only_run(), Path("kept")
    shutil.copytree(run, kept)
    for damage in (DAMAGES | RECORDS).values():
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        for path in run.glob("checkpoint-*.pt"):
            damage(path)
        with pytest.raises(IntegrityError, match=f"{run}: none of 2 checkpoints is intact; delete"):
            load_newest_checkpoint(run)
    assert run_stage().code == 4
    shutil.rmtree(kept)
    shutil.rmtree(run)
    check_rerun(undisturbed)


def test_26_an_edited_finished_run_is_not_published(workspace, undisturbed):
    assert run_stage().code == 0
    metrics = only_run() / "done" / "metrics" / "train.json"
    edit(metrics, lambda value: value.update(val_loss=value["val_loss"] - 2))
    shutil.rmtree("data/models")
    ended = run_stage()
    assert ended.code == 4 and f"{metrics}: sha256 is " in ended.sentence
    assert f"; delete {only_run()} to train from scratch" in ended.sentence
    assert not Path("data/models").exists() and Path("metrics/train.json").read_bytes() != metrics.read_bytes()
    shutil.rmtree(only_run())
    check_rerun(undisturbed)


def test_26_each_file_of_a_finished_run_is_checked_before_it_is_published(workspace):
    before = {"train.keep_weights_at": workspace.get("train.keep_weights_at")}
    workspace.change(**{"train.keep_weights_at": [512 * 3]})
    assert run_stage().code == 0
    workspace.change(**before)
    done, target = only_run() / "done", Path("published")
    checkpoint = only_run() / "kept_weights" / "step-000000003"
    files = [path for folder in (done, checkpoint) for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 9  # three of the model, the metrics, two curves, two of the weights kept, and their hashes
    for path in files:
        for damage in DAMAGES.values():
            with restored(path):
                damage(path)
                with pytest.raises(IntegrityError, match=f"; delete {only_run()} to train from scratch") as raised:
                    publish(done, target / "models", target / "metrics", target / "plots")
                # A damaged hash names the file that it is of.
                assert path.name == "sha256.json" or str(raised.value).startswith(f"{path}: ")
        assert not target.exists()
    # A file that the run did not write is not published.
    (done / "plots" / "more.csv").write_text("")
    publish(done, target / "models", target / "metrics", target / "plots")
    shutil.copytree(done / "models", "expected/models")
    shutil.copytree(checkpoint, "expected/models/kept_weights/step-000000003")
    for name in ("metrics", "plots"):
        shutil.copytree(done / name, f"expected/{name}", ignore=shutil.ignore_patterns("more.csv"))
    assert contents(target) == contents(Path("expected"))
    shutil.rmtree(target)
    shutil.rmtree("expected")


def contents(folder):
    """Return the bytes of all files below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
