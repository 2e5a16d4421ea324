"""Training whose inputs or code have changed, whose loss is not finite, and that does not fit into memory."""

import json
import resource
import signal
from pathlib import Path

import psutil
import pytest

from lm.train.checkpoints import load_newest_checkpoint
from support.refusal import refused
from support.train_cases import (
    check_rerun,
    die_at,
    in_state,
    only_run,
    restored,
    run_stage,
    set_runtime,
)

CODE = "src/lm/train/optimizers.py"


def test_changed_code_starts_a_run_of_its_own_and_changing_back_resumes(workspace, undisturbed):
    """What else counts, and that explanations do not, is tested in tests/lm/train/test_fingerprint.py."""
    killed = run_stage(in_state, 4, die_at, "torch.save", 1, "before")
    assert killed.code == -signal.SIGKILL, killed.err

    with restored(CODE):
        text = Path(CODE).read_text()
        Path(CODE).write_text(text.replace("* 0.2 * math.sqrt", "* 0.21 * math.sqrt"))
        assert Path(CODE).read_text() != text
        ended = run_stage(in_state, 1, die_at, "torch.save", 1, "before")
    assert ended.code == -signal.SIGKILL
    assert "resumed" not in ended.out

    check_rerun(undisturbed, "resumed at step 3 ")


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_best_weights(workspace):
    workspace.change(**{"train.peak_lr": 1e30, "train.divergence_nats": None})
    set_runtime(checkpoint_every_s=3600)
    first = run_stage()
    again = run_stage()

    for ended in (first, again):
        words = ("training diverged at step 1: loss ", ", windows [", "lower train.peak_lr")
        refused(ended.code, ended.err, 6, *words)
    state = load_newest_checkpoint(only_run())
    assert state["step"] == 1
    assert state["best_step"] == 0
    assert all(weight.isfinite().all() for weight in state["best_weights"].values())
    json.loads(Path("metrics/train.json").read_text(), parse_constant=pytest.fail)


def test_a_run_that_diverged_does_not_go_on_past_it(workspace):
    workspace.change(**{"train.peak_lr": 3.0, "train.divergence_nats": 0.1})

    first = run_stage()
    second = run_stage()

    refused(first.code, first.err, 6, "training diverged at step 4: loss ")
    assert first.sentence == second.sentence


def limit_memory(more_bytes: int) -> None:
    """A sabotage: this process can have so many bytes more than it has now."""
    limit = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="the limit on memory is Linux's")
def test_a_failed_allocation_proposes_a_smaller_micro_batch(workspace):
    large = 1 << 19
    one_large_step = {
        "train.batch_tokens": large,
        "train.micro_batch_tokens": large,
        "train.max_tokens": large,
        "train.eval_every_tokens": large,
        "train.warmup_steps": 0,
        "train.numerics": "fast",
        "train.dtype": "float32",
    }
    workspace.change(**one_large_step)

    ended = run_stage(limit_memory, 60 << 20)

    refused(ended.code, ended.err, 5, "out of memory", "lower train.micro_batch_tokens")
