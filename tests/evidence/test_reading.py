"""Files that other programs wrote become runs.

files/trainer was written by transformers 5.23 and files/lm_eval by lm-eval 0.4.13, of tiny models of bytes;
files/wandb_export.csv has the columns that W&B's page of runs writes.
"""

import json
import shutil
from pathlib import Path

import pytest

import evidence
from evidence.errors import WrongInput
from evidence.runs import BITS_PER_BYTE, Measure, make_groups

FILES = Path(__file__).parent / "files"
TRAINER = FILES / "trainer"
LM_EVAL = FILES / "lm_eval"
WANDB = FILES / "wandb_export.csv"


def refusal(paths: list[Path], **choice: str) -> str:
    with pytest.raises(WrongInput) as caught:
        evidence.read(paths, **choice)
    return str(caught.value)


# W&B


def test_the_finished_runs_of_a_wandb_export_are_grouped_by_name_and_seed():
    runs = evidence.read([WANDB], metric="val/loss")
    better = evidence.read([WANDB], metric="epoch", better="higher")

    groups = {group.name: (group.seeds, group.scores.tolist()) for group in make_groups(runs)}
    assert groups["base"] == ([1, 2, 3], [3.2712, 3.2684, 3.2731])
    assert groups["wider_50%"] == ([1, 2, 3], [3.2595, 3.2561, 3.2619])
    assert (runs[0].measure.unit, runs[0].measure.is_higher_better) == ("val/loss", False)
    assert runs[0].kind == "W&B's export, val/loss of the 6 finished runs of 7"
    assert better[0].measure.is_higher_better


def test_the_group_of_wandb_counts_before_the_name(tmp_path):
    table = tmp_path / "export.csv"
    table.write_text("Name,State,Group,seed,loss\njolly-haze-4,finished,a,1,3.1\nfair-sun-5,finished,a,2,3.2\n")

    (group,) = make_groups(evidence.read([table]))

    assert (group.name, group.seeds) == ("a", [1, 2])


def test_a_loss_of_wandb_that_is_not_unique_must_be_named_and_runs_be_finished(tmp_path):
    table = tmp_path / "export.csv"
    table.write_text("Name,State,loss\nbase,running,3.1\n")

    assert "has no run whose State is finished" in refusal([table])
    assert "choose one with --metric: train/loss, val/loss" in refusal([WANDB])
    assert "choose one with --metric: Name, Agent, State, " in refusal([WANDB], metric="val/los")
    table.write_text("Name,State,val_bpb\nbase,finished,1.1\n")
    assert "choose one with --metric: Name, State, val_bpb" in refusal([table])
    assert "epoch is no loss by its name; add --better" in refusal([WANDB], metric="epoch")


# The Trainer


def logged(path: Path) -> dict[int, float]:
    """Return step → evaluation loss of a state."""
    history = json.loads(path.read_text())["log_history"]
    return {entry["step"]: entry["eval_loss"] for entry in history if "eval_loss" in entry}


@pytest.mark.parametrize(("best_of_first", "step"), [("40", 40), ("null", 60)])
def test_the_states_of_a_trainer_give_the_loss_at_the_best_or_at_the_last_step(tmp_path, best_of_first, step):
    """A run is its folder, whose newest checkpoint counts. Unless all runs know their best step, the last one does."""
    folder = shutil.copytree(TRAINER, tmp_path / "runs")
    first = folder / "base-seed1" / "trainer_state.json"
    second = folder / "base-seed2" / "checkpoint-60" / "trainer_state.json"
    for path, best in ((first, best_of_first), (second, "40")):
        path.write_text(path.read_text().replace('"best_global_step": 60', f'"best_global_step": {best}'))

    base, fast = make_groups(evidence.read([folder]))

    assert (base.seeds, fast.seeds) == ([1, 2], [1, 2])
    assert base.name == (folder / "base").as_posix()
    assert base.scores.tolist() == [logged(first)[step], logged(second)[step]]
    steps = "best step (40, 60)" if step == 40 else "last step (60)"
    assert base.runs[0].kind == f"states of the Trainer, eval_loss at the {steps}"


def test_a_metric_that_a_trainer_has_not_logged_is_refused():
    states = sorted(TRAINER.rglob("trainer_state.json"))

    assert "has no eval_accuracy at its best step" in refusal(states, metric="eval_accuracy")
    assert "epoch is no loss" in refusal(states, metric="epoch")


# lm-evaluation-harness


def test_samples_of_lm_eval_give_the_scores_that_it_printed():
    base, fast = evidence.read([LM_EVAL / "base", LM_EVAL / "fast"], metric="acc")
    texts = evidence.read([LM_EVAL], metric="bits_per_byte")

    assert (base.name, base.score, fast.score) == ((LM_EVAL / "base").as_posix(), 0.5, 0.75)
    assert base.measure == Measure("acc", "score", is_higher_better=True)
    assert base.name_of_document(1) == "sums_choice/1"
    assert set(base.sources) == {"sums_choice"}
    assert base.kind == "samples of lm-eval, acc of sums_choice"
    assert [text.score for text in texts] == pytest.approx([4.730271318, 4.191234989])
    assert texts[0].measure == BITS_PER_BYTE


def test_the_newest_file_of_a_task_counts_and_text_may_hold_line_separators(tmp_path):
    for day, correct in ((26, 0.0), (27, 1.0)):
        item = {"doc_id": 0, "acc": correct, "resps": [["\u2028"]]}
        path = tmp_path / f"samples_blimp_one_2026-11-{day}T08-15-00.123456.jsonl"
        path.write_text(json.dumps(item, ensure_ascii=False) + "\n", encoding="utf-8")

    (run,) = evidence.read([tmp_path], better="lower")

    assert (run.score, run.name_of_document(0)) == (1, "blimp_one/0")
    assert not run.measure.is_higher_better


def test_one_of_several_metrics_and_filters_of_lm_eval_must_be_named():
    (run,) = evidence.read([LM_EVAL / "base"], metric="exact_match", filter="flexible-extract")

    assert (run.score, len(run.values)) == (0.5, 8)
    assert "--metric: acc, acc_norm, bits_per_byte, exact_match" in refusal([LM_EVAL])
    assert "--filter: strict-match, flexible-extract" in refusal([LM_EVAL], metric="exact_match")


# All kinds


def test_the_kind_is_recognised_by_content(tmp_path):
    state = tmp_path / "state.json"
    shutil.copy2(TRAINER / "fast-seed1" / "trainer_state.json", state)
    (run,) = evidence.read([state])

    assert run.measure.unit == "eval_loss"


def test_files_of_several_kinds_and_folders_without_any_are_refused(tmp_path):
    assert "give files of one kind" in refusal([WANDB, TRAINER])
    assert f"{tmp_path}: has no trainer_state.json or samples_*.jsonl below it" in refusal([tmp_path])
