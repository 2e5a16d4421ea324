"""What the train stage prints and writes, and what it refuses with which exit code and sentence."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import eval as eval_stage
import lm.train.progress
import lm.train.state
import train as train_stage
from lm.core.files import read_json
from lm.core.params import read_section
from lm.evaluate.documents import mark_spread_windows
from lm.exact.threads import ThreadTuner
from lm.model.config import ModelConfig
from lm.model.gemma3 import count_parameters, flops_per_token
from lm.model.seen import hash_documents, load_seen
from lm.tokens.tokenfile import open_tokens
from lm.train.checkpoints import list_checkpoints
from lm.train.config import TrainParams
from lm.train.state import TrainingState
from lm.train.step import learning_rate
from support.model_cases import let_models_see_the_next_token
from support.refusal import refused
from support.train_cases import (
    ARGUMENTS,
    TOKENIZER,
    clear,
    fresh_training,
    make_training,
    only_run,
    restored,
    results,
    set_runtime,
    write_ids,
)
from support.workspace import Workspace

BATCH_TOKENS = 512


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return make_training(tmp_path_factory.mktemp("template") / "ws")


@pytest.fixture
def workspace(template):
    """The small copy as the working directory."""
    with fresh_training(template):
        yield template


def train() -> str:
    """Train the run of the current directory; return the fingerprint of the run."""
    assert train_stage.main(ARGUMENTS) == 0
    return read_json(Path("data/models/model.json"))["fingerprint"]


def change_training(workspace: Workspace, **values) -> None:
    """Change parameters of the section `train`."""
    workspace.change(**{f"train.{name}": value for name, value in values.items()})


def read_curve(path: Path | str, columns: range | None = None) -> np.ndarray:
    """Return the rows of a curve, of which the columns must be numbers."""
    return np.loadtxt(path, delimiter=",", skiprows=1, usecols=columns)


# What the stage refuses.


@pytest.mark.parametrize("first_step", [0, 2])
def test_a_model_that_sees_the_future_is_not_trained(workspace, capsys, monkeypatch, first_step):
    if first_step:
        assert train_stage.main([*ARGUMENTS, "--until", str(first_step)]) == 0
    let_models_see_the_next_token(monkeypatch)

    status = train_stage.main(ARGUMENTS)

    refused(status, capsys.readouterr().err, 4, "validation.bin", "sees the future", "at position 0 ")
    assert not Path("data/models").exists()


# What a run prints and writes.


LOSSES = {0: 4.0, 2: 3.0, 4: 3.0, 5: 3.5}


@pytest.fixture(scope="module")
def trained(template):
    """Train five steps, validated at 0, 2, 4 and 5 with the LOSSES, of equal ones the first is the best.

    Return the folder, model.json, and the weights by step.
    """
    weights = {}
    update_weights = train_stage.step.update_weights

    def update(state, lr):
        update_weights(state, lr)
        weights[state.step] = state.weights()

    with pytest.MonkeyPatch.context() as patch, fresh_training(template):
        patch.setattr(train_stage.step, "update_weights", update)
        patch.setattr(train_stage.step, "validation_loss", lambda state, *others: LOSSES[state.step])
        template.change(**{"models.micro.sliding_window": 64})
        change_training(
            template,
            seed=5,
            sampled_vocab_size=None,
            eval_tokens=96,
            warmup_steps=2,
            max_tokens=5 * BATCH_TOKENS + 1,
            eval_every_tokens=2 * BATCH_TOKENS,
            log_every_tokens=BATCH_TOKENS,
        )
        fingerprint = train()
        folder = shutil.copytree(".", template.folder.parent / "trained", symlinks=True)
    record = read_json(folder / "data/models/model.json")
    return SimpleNamespace(
        folder=folder,
        run=folder / ".runs" / fingerprint,
        record=record,
        metrics=read_json(folder / "metrics/train.json"),
        weights=weights,
        params=read_section(folder / "params.yaml", "train", TrainParams),
    )


@pytest.mark.parametrize(("name", "step"), [("best", 2), ("last", 5)])
def test_the_best_and_the_last_weights_are_those_of_their_steps(trained, name, step):
    found = trained.record[name]

    assert found["step"] == step
    assert found["tokens_seen"] == step * BATCH_TOKENS
    assert found["val_loss"] == LOSSES[step]
    weights = torch.load(trained.folder / f"data/models/{name}_model_params.pt", weights_only=True)
    assert list(weights) == list(trained.weights[step])
    for key, weight in trained.weights[step].items():
        assert torch.equal(weights[key], weight), key


def test_the_curves_have_the_losses_and_rates_of_their_steps(trained):
    rates = read_curve(trained.folder / "plots/training.csv")[:, 2]
    heading, *lines = (trained.folder / "plots/validation.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines]

    assert rates == pytest.approx([learning_rate(step, trained.params) for step in range(5)], rel=1e-7)
    assert len(set(rates)) > 2
    assert heading == "step,tokens,val_loss,checkpoint_digest"
    found = {int(step): (int(tokens), float(loss)) for step, tokens, loss, _ in rows}
    assert found == {step: (step * BATCH_TOKENS, loss) for step, loss in LOSSES.items()}
    assert len({digest for *_, digest in rows}) == len(rows)


def test_the_record_names_what_made_the_model_and_has_the_figures_of_the_last_step(trained):
    """None is that of the first step or of the plan."""
    hashes = {name: read_json(trained.folder / f"{name}.json")["sha256"] for name in ("train", "validation")}
    losses = read_curve(trained.folder / "plots/training.csv")[:, 3]
    config = ModelConfig(**trained.record["config"])
    parameters = count_parameters(config)["total"]
    figures = {
        "steps": 5,
        "epochs": 5 * BATCH_TOKENS / 3000,
        "training_flops": pytest.approx(flops_per_token(config, 32, None)["total"] * 5 * BATCH_TOKENS),
        "parameters": parameters,
        "last_train_loss": pytest.approx(losses[-1], rel=1e-7),
    }
    expected = {
        "data_sha256": hashes,
        "seq_len": 32,
        "seed": 5,
        "eval_tokens": 96,
        "attend_across_documents": True,
        "eot_id": 49,
        "tokenizer_sha256": TOKENIZER["sha256"],
        "init_sha256": None,
        "text": {"source": {"name": "cycle"}, "slice": {"split": "train"}},
        "training": figures,
    }

    assert {name: trained.record[name] for name in expected} == expected
    (segment,) = trained.record["segments"]
    assert segment["from_step"] == 0
    assert segment["numerics"] == "exact"
    assert trained.metrics == {
        "val_loss": 3.0,
        "train_loss": trained.record["training"]["last_train_loss"],
        "tokens_seen": 5 * BATCH_TOKENS,
        "parameters": parameters,
    }
    timing = read_json(trained.run / "timing.json")
    assert timing["computed_on"]["threads"] == torch.get_num_threads()


# What a run takes of the machine, and how it counts its time.


def test_threads_stay_where_they_change_bits(workspace, monkeypatch):
    adapting = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(ThreadTuner, "adapt", lambda tuner: adapting.append(tuner.adapts))
    change_training(workspace, numerics="fast", dtype="float32")

    train()

    assert adapting == [False] * 8


@pytest.fixture
def takes(monkeypatch):
    """Return a function that says how many seconds a function takes; nothing else takes time."""
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    for module in (train_stage, lm.train.state, lm.train.progress):
        monkeypatch.setattr(module, "time", clock)

    def set_seconds(owner, name: str, seconds: float) -> list[tuple]:
        """Return a list that gets the arguments of each call."""
        function = getattr(owner, name)
        calls = []

        def slower(*arguments):
            calls.append(arguments)
            clock.now_s += seconds
            return function(*arguments)

        monkeypatch.setattr(owner, name, slower)
        return calls

    return set_seconds


def test_time_is_counted_by_activity_and_the_last_save_alone_decides_when_the_next_one_is_due(workspace, takes):
    """A save takes a fiftieth of the time: one of 0.13 s asks for 6.5 s until the next, two would ask for 13."""
    takes(train_stage.step, "update_weights", 1)
    takes(train_stage.step, "validation_loss", 0.5)
    takes(TrainingState, "digest", 0.25)
    saved = takes(train_stage.checkpoints, "save_checkpoint", 0.13)
    change_training(workspace, max_tokens=20 * BATCH_TOKENS, eval_every_tokens=20 * BATCH_TOKENS)
    set_runtime(checkpoint_every_s=5, keep_checkpoints=0)

    fingerprint = train()

    assert [step for _, step, *_ in saved] == [5, 12, 19]
    timing = read_json(Path(".runs", fingerprint, "timing.json"))
    assert timing["train_seconds"] == timing["seconds"][-1] == pytest.approx(20)
    assert timing["validation_seconds"][-1] == pytest.approx(2 * 0.75)
    assert timing["saving_seconds"][-1] == pytest.approx(3 * 0.13)


@pytest.fixture
def flushed():
    """A library has set the processor to replace subnormal numbers by zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    yield
    torch.set_flush_denormal(False)


def test_a_run_keeps_subnormal_numbers(workspace, flushed):
    smallest_normal = torch.tensor(torch.finfo(torch.float32).tiny)
    assert smallest_normal / 2 == 0

    train()

    assert smallest_normal / 2 > 0


# How a run begins and ends.


@pytest.fixture
def of_documents(workspace):
    """Train a model that keeps to its document, on token files of short documents; return it and its record."""
    with restored("train.bin", "train.json", "validation.bin", "validation.json"):
        for name, count in (("train.bin", 3000), ("validation.bin", 700)):
            write_ids(name, count, TOKENIZER | {"eot_id": 5})
        change_training(workspace, attend_across_documents=False)
        train()
        yield eval_stage.load_as_trained(Path("data/models"))


def selected_loss(model, record: dict) -> float:
    """Return the mean loss of the tokens that select the best model, as the evaluation computes it."""
    validation = open_tokens("validation.bin")
    selected = mark_spread_windows(validation, record["eval_tokens"], 32)
    losses, _ = eval_stage.score(model, validation, 32, 32, ThreadTuner())
    return losses[selected].mean()


def test_validation_and_evaluation_keep_to_the_document(of_documents):
    model, record = of_documents
    val_loss = record["best"]["val_loss"]
    assert record["attend_across_documents"] is False
    assert record["eot_id"] == model.document_start_id == 5

    assert selected_loss(model, record) == pytest.approx(val_loss, abs=1e-5)
    model.document_start_id = None
    assert selected_loss(model, record) != pytest.approx(val_loss, abs=1e-5)


def test_a_run_that_starts_from_a_model_has_its_own_attention(of_documents, workspace, tmp_path):
    model, record = of_documents
    shutil.copytree("data/models", tmp_path / "start")
    change_training(workspace, attend_across_documents=True, init_from=str(tmp_path / "start"))

    train()

    first_loss = read_curve("plots/validation.csv", range(3))[0, 2]
    model.document_start_id = None
    assert first_loss == pytest.approx(selected_loss(model, record), abs=1e-5)
    again = read_json(Path("data/models/model.json"))
    assert again["attend_across_documents"] is True
    assert again["init_sha256"] == record["best"]["sha256"]
    by_start = load_seen(Path("data/models"), again)["by_start"]
    assert torch.equal(by_start, hash_documents(open_tokens("train.bin")))
    assert len(by_start) > 1


def test_a_finished_run_is_published_without_training_and_says_how_to_train_it_again(workspace, capsys):
    train()
    before = results()
    for name in ("data/models", "metrics", "plots"):
        shutil.rmtree(name)
    capsys.readouterr()

    train()

    out = capsys.readouterr().out
    assert "parameters" not in out
    assert "nothing is trained" in out
    assert results() == before

    (command,) = re.findall(r"to train it again: (rm -r .*) && dvc repro -f train\n", out)
    workspace.run("bash", "-c", command)
    train()
    assert "parameters" in capsys.readouterr().out


def test_a_run_until_a_step_is_left_unfinished_and_continues_from_there(workspace):
    train()
    whole = results()
    clear()

    assert train_stage.main([*ARGUMENTS, "--until", "7"]) == 0

    run = only_run()
    assert list_checkpoints(run)[-1].step == 7
    assert not (run / "done").exists()
    assert not Path("data/models").exists()
    train()
    assert results() == whole
