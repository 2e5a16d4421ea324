"""What the train stage prints and writes, and what it refuses with which exit code and sentence."""

import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import eval as eval_stage
import train as train_stage
from lm.core.params import read_section
from lm.evaluate.documents import mark_model_selection
from lm.exact.threads import ThreadTuner
from lm.model.config import ModelConfig
from lm.model.gemma3 import count_parameters, flops_per_token
from lm.tokenizer.build import write_trained_bpe
from lm.tokens.tokenfile import open_tokens
from lm.train.checkpoints import list_checkpoints
from lm.train.config import TrainParams
from lm.train.state import TrainingState
from lm.train.step import learning_rate
from support.train_cases import ARGUMENTS, TOKENIZER, restored, results, set_runtime, write_ids
from support.workspace import Workspace


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("template") / "ws")
    workspace.make_small()
    workspace.change(**{"train.ngram_buckets": None})
    return workspace


@pytest.fixture
def workspace(template, monkeypatch):
    """The small copy as the current directory, with token files of a fixed cycle and its own parameters."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(template.folder)
    write_ids("train.bin", 3000)
    write_ids("validation.bin", 700)
    with restored("params.yaml", "presets.yaml", "runtime.yaml"):
        yield template


def test_files_of_different_tokenizers_are_refused(workspace, capsys):
    write_ids("train.bin", 100, TOKENIZER | {"sha256": "cd" * 32})
    assert train_stage.main(ARGUMENTS) == 4
    assert "were made with different tokenizers" in capsys.readouterr().err.strip().splitlines()[-1]


def test_every_flag_is_needed_by_its_full_name(workspace, capsys):
    for arguments in (ARGUMENTS[2:], ["--tra", *ARGUMENTS[1:]], ["train.bin"]):
        with pytest.raises(SystemExit, match="2"):
            train_stage.main(arguments)
        assert "required: --train" in capsys.readouterr().err


def test_spelling_needs_the_tokenizer_of_the_tokens(workspace, capsys):
    workspace.change(**{"train.ngram_buckets": 64})
    place = ARGUMENTS.index("--tokenizer")
    assert train_stage.main(ARGUMENTS[:place] + ARGUMENTS[place + 2 :]) == 2
    assert (
        "params.yaml: train.ngram_buckets is 64; it must be null, or give the flag --tokenizer"
        in capsys.readouterr().err
    )
    assert train_stage.main(ARGUMENTS) == 4
    assert "data/tokenizer/meta.json: missing" in capsys.readouterr().err
    folder = Path("data/tokenizer")
    folder.mkdir()
    write_trained_bpe(folder, [["a text"]], 257)
    assert train_stage.main(ARGUMENTS) == 4
    assert "train.bin: made with tokenizer abababababab…, data/tokenizer is " in capsys.readouterr().err
    shutil.rmtree(folder)


def test_a_run_prints_its_size_and_writes_its_outputs(workspace, capsys):
    workspace.change(**{"models.micro.sliding_window": 64})
    assert train_stage.main(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    for word in ("parameters", "steps", "epochs", "work", "memory"):
        assert word in out
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert [line.split(",")[0] for line in lines] == ["step 0 of 20", "step 10 of 20", "step 20 of 20"]
    number = r"[\d.,]+"
    losses = f"training loss {number}, validation loss {number}"
    assert re.fullmatch(f"step 10 of 20, 5,120 tokens, {losses}, {number} tokens/s, {number} min left", lines[1])
    assert "sliding attention is never active" in err
    record = json.loads(Path("data/models/model.json").read_text())
    assert record["tokenizer_sha256"] == TOKENIZER["sha256"]
    assert record["best"]["step"] <= record["last"]["step"] == 20
    assert record["segments"][0]["from_step"] == 0
    curve = [row.split(",") for row in Path("plots/validation.csv").read_text().splitlines()]
    assert curve[0] == ["step", "tokens", "val_loss", "checkpoint_digest"]
    assert all(re.fullmatch("[0-9a-f]{12}", row[3]) for row in curve[1:]) and len({row[3] for row in curve}) == 4
    rows = Path("plots/training.csv").read_text().splitlines()
    assert rows[0] == "step,tokens,lr,train_loss,grad_norm" and len(rows) == 11
    assert record["training"].keys() == {"steps", "epochs", "training_flops", "parameters", "last_train_loss"}
    metrics = json.loads(Path("metrics/train.json").read_text())
    assert list(metrics) == ["val_loss", "train_loss", "tokens_seen", "parameters"]
    timing = json.loads(Path(".runs", record["fingerprint"], "timing.json").read_text())
    assert list(timing) == ["train_seconds", "tokens", "seconds", "validation_seconds", "saving_seconds", "computed_on"]
    assert timing["computed_on"]["threads"] == torch.get_num_threads()
    assert re.search(r"work .* \d+% of it in Muon\n", out)


def test_best_last_and_chosen_weights_are_those_of_their_steps(workspace, monkeypatch):
    """A run of five steps is validated at steps 0, 2, 4 and 5. Of equal losses, the first is the best."""
    losses = {0: 4.0, 2: 3.0, 4: 3.0, 5: 3.5}
    weights = {}
    update_weights = train_stage.step.update_weights

    def update(state, lr):
        update_weights(state, lr)
        weights[state.step] = state.weights()

    monkeypatch.setattr(train_stage.step, "update_weights", update)
    monkeypatch.setattr(train_stage.step, "validation_loss", lambda state, *others: losses[state.step])
    batch = workspace.get("train.batch_tokens")
    lengths = {"max_tokens": 5 * batch + 1, "eval_every_tokens": 2 * batch, "log_every_tokens": batch}
    chosen = {"seed": 5, "warmup_steps": 2, "keep_weights_at": [2 * batch, 3 * batch]}
    workspace.change(**{f"train.{name}": value for name, value in (lengths | chosen).items()})
    assert train_stage.main(ARGUMENTS) == 0

    record = json.loads(Path("data/models/model.json").read_text())
    for name, step in (("best", 2), ("last", 5)):
        found = {key: record[name][key] for key in ("step", "tokens_seen", "val_loss")}
        assert found == {"step": step, "tokens_seen": step * batch, "val_loss": losses[step]}
        assert_same_weights(Path(f"data/models/{name}_model_params.pt"), weights[step])
    for step in (2, 3):
        kept = Path(f"data/models/kept_weights/step-{step:09d}")
        assert_same_weights(kept / "best_model_params.pt", weights[step])
        assert json.loads((kept / "model.json").read_text())["best"]["val_loss"] == losses.get(step)
    assert record["training"]["steps"] == 5
    validation = np.loadtxt("plots/validation.csv", delimiter=",", skiprows=1, usecols=range(3))
    assert validation.tolist() == [[step, step * batch, loss] for step, loss in losses.items()]
    metrics = json.loads(Path("metrics/train.json").read_text())
    assert (metrics["val_loss"], metrics["tokens_seen"]) == (3.0, 5 * batch)

    # Each step had the learning rate of its number, counted from 0.
    params = read_section("params.yaml", "train", TrainParams)
    rates = np.loadtxt("plots/training.csv", delimiter=",", skiprows=1, usecols=2)
    assert rates == pytest.approx([learning_rate(step, params) for step in range(5)], rel=1e-7)
    assert len(set(rates)) > 2


def test_a_record_names_what_made_the_model(workspace):
    """Each figure is that of the last step, and none that of the first or of the plan."""
    batch = workspace.get("train.batch_tokens")
    lengths = {"max_tokens": 4 * batch, "log_every_tokens": batch, "eval_every_tokens": 2 * batch}
    workspace.change(**{f"train.{name}": value for name, value in (lengths | {"seed": 8, "eval_tokens": 96}).items()})
    set_runtime(checkpoint_every_s=0)
    assert train_stage.main(ARGUMENTS) == 0

    record, metrics = (json.loads(Path(name).read_text()) for name in ("data/models/model.json", "metrics/train.json"))
    sidecars = {name: json.loads(Path(f"{name}.json").read_text()) for name in ("train", "validation")}
    assert record["data_sha256"] == {name: meta["sha256"] for name, meta in sidecars.items()}
    assert sidecars["train"]["sha256"] != sidecars["validation"]["sha256"]
    expected = {"seq_len": 32, "seed": 8, "eval_tokens": 96, "attend_across_documents": True, "eot_id": 49}
    assert {name: record[name] for name in expected} == expected
    assert record["init_sha256"] is None
    (segment,) = record["segments"]
    assert segment["from_step"] == 0 and segment["numerics"] == "exact"

    rows = np.loadtxt("plots/training.csv", delimiter=",", skiprows=1)
    config = ModelConfig(**record["config"])
    training = record["training"]
    assert rows[0, 3] != rows[-1, 3]
    assert training["last_train_loss"] == metrics["train_loss"] == pytest.approx(rows[-1, 3], rel=1e-7)
    assert training["steps"] == 4 and training["epochs"] == 4 * batch / 3000
    assert training["parameters"] == metrics["parameters"] == count_parameters(config)["total"]
    assert training["training_flops"] == pytest.approx(flops_per_token(config, 32, None)["total"] * 4 * batch)

    # Of the checkpoints, the one between the validations stays, and the one from which on the learning rate falls.
    params = read_section("params.yaml", "train", TrainParams)
    staying = [checkpoint.step for checkpoint in list_checkpoints(Path(".runs") / record["fingerprint"])]
    assert staying == sorted({2, params.decay_begins} - {0})


def assert_same_weights(path, expected):
    found = torch.load(path, weights_only=True)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items()), path


@pytest.mark.parametrize(("numerics", "adapts"), [("exact", True), ("fast", False)])
def test_threads_follow_the_free_cores(workspace, monkeypatch, numerics, adapts):
    looks = []

    class Cores(ThreadTuner):
        def adapt(self):
            looks.append(self.adapts)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(train_stage, "ThreadTuner", Cores)
    workspace.change(**{"train.numerics": numerics, "train.dtype": "float32", "train.seed": 77})  # a run of its own
    assert train_stage.main(ARGUMENTS) == 0
    assert looks == [adapts] * 20, "before each step"
    model, _ = eval_stage.load_as_trained(Path("data/models"))
    assert model.numerics == numerics
    eval_stage.score(model, open_tokens("validation.bin"), 32, [32], Cores())
    assert looks[20:] == [True], "after each batch"


@pytest.mark.parametrize("is_shown", [True, False])
def test_the_peak_speed_is_measured_for_a_bar_only(workspace, monkeypatch, capsys, is_shown):
    """It costs a third of a second of all cores."""
    measured = []
    monkeypatch.setattr(train_stage, "shows_bar", lambda world: is_shown)
    monkeypatch.setattr(train_stage.machine, "matmul_peak_flops", lambda *given: measured.append(given) or 1e9)
    workspace.change(**{"train.seed": 21 + is_shown})  # a run of its own

    assert train_stage.main(ARGUMENTS) == 0

    out, err = capsys.readouterr()
    assert len(measured) == int(is_shown)
    assert ("val_loss=" in err and "mfu=" in err) is is_shown
    assert ("validation loss" in out.split("best validation loss")[0]) is not is_shown


def test_a_model_keeps_to_documents_and_is_trained_on(workspace, tmp_path, capsys):
    for name, count in (("train.bin", 3000), ("validation.bin", 700)):
        write_ids(name, count, TOKENIZER | {"eot_id": 5})
    workspace.change(**{"train.attend_across_documents": False})
    assert train_stage.main(ARGUMENTS) == 0
    model, record = eval_stage.load_as_trained(Path("data/models"))
    assert model.numerics == "exact"
    assert (record["attend_across_documents"], record["eot_id"], model.document_start_id) == (False, 5, 5)

    # Validation and evaluation use it.
    validation = open_tokens("validation.bin")
    selected = mark_model_selection(validation, record["eval_tokens"], 32)
    ((within, _),) = eval_stage.score(model, validation, 32, [32], ThreadTuner())
    assert within[selected].mean() == pytest.approx(record["best"]["val_loss"], abs=1e-5)
    model.document_start_id = None
    ((across, _),) = eval_stage.score(model, validation, 32, [32], ThreadTuner())
    assert across[selected].mean() != pytest.approx(record["best"]["val_loss"], abs=1e-5)

    # A run that starts from the model has its own setting.
    shutil.copytree("data/models", tmp_path / "start")
    workspace.change(**{"train.attend_across_documents": True, "train.init_from": str(tmp_path / "start")})
    assert train_stage.main(ARGUMENTS) == 0
    first = Path("plots/validation.csv").read_text().splitlines()[1]
    assert float(first.split(",")[2]) == pytest.approx(across[selected].mean(), abs=1e-5)
    again = json.loads(Path("data/models/model.json").read_text())
    assert again["attend_across_documents"] is True and again["init_sha256"] == record["best"]["sha256"]


def test_patience_stops_the_run_early(workspace, capsys):
    workspace.change(**{"train.patience_evals": 1, "train.peak_lr": 2.0, "train.warmup_steps": 0,
                        "train.eval_every_tokens": 512, "train.divergence_nats": None})  # fmt: skip
    workspace.change(**{"train.keep_weights_at": [0, 20 * 512]})
    assert train_stage.main(ARGUMENTS) == 0
    record = json.loads(Path("data/models/model.json").read_text())
    training = record["training"]
    assert list(record["kept_weights"]) == ["step-000000000"], "the run did not reach the other step"
    steps = training["steps"]
    train_tokens = json.loads(Path("train.json").read_text())["tokens"]
    assert steps < 20 and f"stopped early at step {steps}: no improvement in 1 validations" in capsys.readouterr().out
    assert training["epochs"] == steps * 512 / train_tokens, "those of the run, not of the plan"


def test_a_finished_run_is_published_without_training(workspace, capsys):
    assert train_stage.main(ARGUMENTS) == 0
    before = results()
    for name in ("data/models", "metrics", "plots"):
        shutil.rmtree(name)
    capsys.readouterr()
    assert train_stage.main(ARGUMENTS) == 0
    out = capsys.readouterr().out
    assert "parameters" not in out and "already finished" in out and "nothing is trained" in out
    assert results() == before
    command = re.search(r"to train it again: (rm -r .*) && dvc repro -f train\n", out)[1]
    workspace.run("bash", "-c", command)
    assert train_stage.main(ARGUMENTS) == 0
    assert "parameters" in capsys.readouterr().out


def test_a_run_until_a_step_is_left_unfinished_and_continues_from_there(workspace):
    assert train_stage.main(ARGUMENTS) == 0
    whole = results()
    for name in (".runs", "data/models", "metrics", "plots"):
        shutil.rmtree(name)
    assert train_stage.main([*ARGUMENTS, "--until", "7"]) == 0
    (run,) = Path(".runs").glob("[!.]*")
    assert list_checkpoints(run)[-1].step == 7
    assert not (run / "done").exists() and not Path("data/models").exists()
    assert train_stage.main(ARGUMENTS) == 0
    assert results() == whole


@pytest.fixture
def slow_down(monkeypatch):
    """Return a function that makes every call of a function or method take longer."""

    def slow(owner, name: str, seconds: float) -> None:
        function = getattr(owner, name)

        def slower(*arguments):
            time.sleep(seconds)
            return function(*arguments)

        monkeypatch.setattr(owner, name, slower)

    return slow


def test_validations_and_saves_do_not_count_as_training(workspace, capsys, slow_down):
    slow_down(train_stage.step, "validation_loss", 0.2)
    slow_down(TrainingState, "digest", 0.2)
    slow_down(train_stage.checkpoints, "save_checkpoint", 0.05)
    workspace.change(**{"train.seed": 3})
    begin = time.monotonic()
    set_runtime(checkpoint_every_s=0)
    assert train_stage.main(ARGUMENTS) == 0
    wall_s = time.monotonic() - begin
    run = json.loads(Path("data/models/model.json").read_text())["fingerprint"]
    timing = json.loads(Path(".runs", run, "timing.json").read_text())
    training, validation, saving = (timing[f"{kind}seconds"][-1] for kind in ("", "validation_", "saving_"))
    assert training == timing["train_seconds"] and validation > 6 * 0.2 and saving > 18 * 0.05
    assert 0 < training < wall_s - validation - saving
    assert re.search(r"\nminutes +[\d.]+ training, [\d.]+ validation, [\d.]+ saving\n", capsys.readouterr().out)


def test_a_sample_longer_than_the_model_is_refused_before_training(workspace, capsys):
    workspace.change(**{"eval.sample_tokens": 1024})
    assert train_stage.main(ARGUMENTS) == 2
    assert "eval.sample_tokens is 1024; it must be 1 or more, below models." in capsys.readouterr().err


def test_the_time_of_the_last_save_alone_decides_when_the_next_one_is_due(workspace, monkeypatch, slow_down):
    last_saves_s = []
    monkeypatch.setattr(train_stage.checkpoints, "interval_s", lambda every_s, last_s: last_saves_s.append(last_s) or 0)
    slow_down(train_stage.checkpoints, "save_checkpoint", 0.02)
    workspace.change(**{"train.seed": 31})  # a run of its own

    assert train_stage.main(ARGUMENTS) == 0

    run = json.loads(Path("data/models/model.json").read_text())["fingerprint"]
    all_saves_s = json.loads(Path(".runs", run, "timing.json").read_text())["saving_seconds"][-1]
    assert last_saves_s[0] == 0 and min(last_saves_s[1:]) >= 0.02
    assert sum(last_saves_s) <= 1.01 * all_saves_s
