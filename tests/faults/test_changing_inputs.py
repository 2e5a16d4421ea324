"""Parameters, code or data that change while a stage runs: nothing is recorded, and nothing is lost."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import train as train_stage
from lm.train.ranks import SINGLE_PROCESS
from support import ROOT
from support.process import CAP_S, hold_at_rename, started, wait_for
from support.refusal import refused
from support.stages import change_params, module_and_arguments, outputs_of, run_here, work_in_copy
from support.workspace import Workspace

CODE = "src/lm/core/errors.py"
# One input of each stage; which of them count is tested in tests/lm/core/test_inputs.py.
EDITED = {
    "fetch": "data/local/texts.jsonl",
    "make_tokenizer": "tokenizers.bpe.vocab_size",
    "tokenize_train": "sources.local.train.num_chars",
    "tokenize_val": CODE,
    "audit": "data/processed_datasets/train.json",
    "train": "train.peak_lr",
    "eval": CODE,
    "plot": "plots/training.csv",
}


def edit(name: str) -> None:
    """Change a parameter, or add an empty line to a file."""
    if "/" in name:
        Path(name).write_text(Path(name).read_text() + "\n")
    else:
        change_params(Path(), {name: 400})


@pytest.fixture
def folder(pipeline, tmp_path, monkeypatch):
    """A pipeline that has run, with code of its own, as the working folder."""
    work_in_copy(monkeypatch, pipeline, tmp_path / "ws")
    Path("src").unlink()
    shutil.copytree(ROOT / "src", "src", ignore=shutil.ignore_patterns("__pycache__"))


def edit_in_call(monkeypatch: pytest.MonkeyPatch, function: str, name: str) -> None:
    """Edit something at the first call of a function of a stage."""
    module, attribute = function.split(".")
    original = getattr(__import__(module), attribute)

    def armed(*arguments, **options):
        monkeypatch.setattr(function, original)
        edit(name)
        return original(*arguments, **options)

    monkeypatch.setattr(function, armed)


@pytest.mark.parametrize(("stage", "name"), EDITED.items())
def test_an_input_that_changes_is_named_and_nothing_is_published(folder, monkeypatch, capsys, stage, name):
    published = [Path(path) for path in outputs_of(stage) if stage != "train" or path == "data/models"]
    for path in published:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    module, _ = module_and_arguments(stage)
    edit_in_call(monkeypatch, "plot.read_parquet" if stage == "plot" else f"{module}.output_lock", name)

    status = run_here(stage)

    refused(status, capsys.readouterr().err, 4, name, f"while the stage {stage} ran", "run the same command again")
    assert [path for path in published if path.exists()] == []


@pytest.mark.parametrize("is_rank", [False, True], ids=["stage", "rank"])
def test_no_run_is_named_by_code_that_does_not_run(folder, monkeypatch, capsys, is_rank):
    """The fingerprint, which names the folder of a run, is that of the code on the disk."""
    runs = os.listdir(".runs")
    edit_in_call(monkeypatch, "train.read_params", CODE)
    if is_rank:
        rank = train_stage.run_rank
        monkeypatch.setattr(train_stage, "run_stage", lambda *given: rank(*given[:3], SINGLE_PROCESS))

    status = run_here("train")

    printed = capsys.readouterr()
    refused(status, printed.err, 4, CODE)
    assert "already finished" not in printed.out
    assert os.listdir(".runs") == runs


# With DVC.


EXPERIMENT = ("dvc", "exp", "run", "-n", "tried", "-S", "train.seed=3")


def recorded(workspace: Workspace) -> tuple:
    """Return what DVC has recorded: dvc.lock, the experiments, the runs of its cache."""
    runs = sorted(path.name for path in Path(".dvc/cache/runs").rglob("*"))
    return Path("dvc.lock").read_text(), workspace.run("dvc", "exp", "list", "--name-only").stdout, runs


@pytest.mark.slow
def test_an_experiment_edited_while_it_trains_is_not_recorded_and_its_training_is_not_lost(committed):
    before = recorded(committed)
    held = Path(".dvc/tmp/held")

    # The workspace is edited before a checkpoint is saved.
    environment = committed.environment | hold_at_rename("*/checkpoint-*.json", held.absolute().parent)
    process = started(*EXPERIMENT, env=environment, text=True, stderr=subprocess.PIPE)
    wait_for(lambda: held.exists() or process.poll() is not None)
    for name in ("train.peak_lr", CODE):
        edit(name)
    held.with_name("go").touch()
    _, printed = process.communicate(timeout=CAP_S)

    assert "exited with 4" in printed
    assert "error: params.yaml: train.peak_lr was 0.01 and is 400 (and 1 more)" in printed
    assert recorded(committed) == before

    # The inputs are restored.
    committed.run("git", "restore", "params.yaml", CODE)
    again = committed.run(*EXPERIMENT)
    assert "nothing is trained" in again.stdout
    assert "tried" in recorded(committed)[1]
