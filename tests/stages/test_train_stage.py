"""What the train stage prints and writes, and what it refuses with which exit code and sentence."""

import dataclasses
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import eval as eval_stage
import train as train_stage
from lm.core.errors import DataError
from lm.core.params import read_section
from lm.evaluate.documents import mark_model_selection
from lm.exact.threads import ThreadTuner
from lm.model.config import ModelConfig
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token
from lm.tokenizer.build import write_trained_bpe
from lm.tokens.tokenfile import open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.checkpoints import list_checkpoints
from lm.train.config import TrainParams, TrainRuntime
from lm.train.ranks import World
from lm.train.state import History
from lm.train.step import learning_rate, sampling_weights
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


def test_the_weights_begin_as_the_seed_says_and_windows_follow_it(workspace, monkeypatch):
    drawn = []
    starts = []
    for seed in (11, 12):
        workspace.change(**{"train.seed": seed, "train.sampled_vocab_size": 25, "train.numerics": "exact"})
        made = []
        monkeypatch.setattr(train_stage, "print_plan", made.append)
        monkeypatch.setattr(train_stage, "resume", stop)
        assert train_stage.main(ARGUMENTS) == 3
        expected = Gemma3Model(made[0].inputs.config, "exact")
        expected.init_weights(torch.Generator().manual_seed(seed))
        found = made[0].state.model
        assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))
        assert np.array_equal(made[0].windows.starts(0), TokenWindows(made[0].inputs.train.ids, 32, 16, seed).starts(0))
        train_ids = made[0].inputs.train.ids
        assert torch.equal(found.sampling_weights, sampling_weights(train_ids, 50)), (
            "the odds of the sampled vocabulary"
        )
        drawn.append(found.embed_tokens.weight.detach().clone())
        starts.append(made[0].windows.starts(0).tolist())
    assert not torch.equal(*drawn) and starts[0] != starts[1]


def stop(*given):
    """End a stage with exit code 3."""
    raise DataError("enough was built")


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


@pytest.fixture
def planned(workspace, monkeypatch):
    """Return a function that builds a run of several ranks, up to the check of its memory; it returns the plan.

    The plan has the tokens of a micro-batch, the shards, the dtype, and the free bytes of the machine's 10 million.
    """
    monkeypatch.setattr(World, "all_reduce_max", lambda self, *numbers: numbers)
    monkeypatch.setattr(train_stage.machine, "available_memory_bytes", lambda device: 10_000_000)
    found = SimpleNamespace()

    def plan(params, config, train_tokens, micro_batch_tokens, num_shards, device, dtype):
        found.micro_batch_tokens = micro_batch_tokens
        found.num_shards = num_shards
        found.dtype = dtype

    def check_memory(plan, device, free_bytes):
        found.free_bytes = free_bytes
        raise DataError("enough was built")

    monkeypatch.setattr(train_stage.preflight, "Plan", plan)
    monkeypatch.setattr(train_stage.preflight, "check_memory", check_memory)

    def build(world: World, device: str = "cpu", saved: dict | None = None) -> SimpleNamespace:
        paths = SimpleNamespace(train=Path("train.bin"), validation=Path("validation.bin"), tokenizer=None)
        inputs = train_stage.read_inputs(paths, read_section("runtime.yaml", "train", TrainRuntime), World())
        with pytest.raises(DataError):
            train_stage.build(dataclasses.replace(inputs, device=torch.device(device)), world, saved)
        return found

    return build


@pytest.mark.parametrize(("device", "share"), [("cpu", 4), ("cuda", 1)])
def test_the_ranks_of_a_host_share_its_memory_and_each_has_a_gpu(planned, device, share):
    found = planned(World(world_size=8, local_world_size=4), device)
    assert found.free_bytes == 10_000_000 // share


@pytest.mark.parametrize(("sharded", "num_shards"), [(True, 8), (False, 1)])
def test_the_memory_of_a_rank_is_that_of_its_rows_and_its_shard(planned, sharded, num_shards):
    """Each of eight ranks takes two of the 16 sequences of 32 tokens."""
    found = planned(World(world_size=8, local_world_size=8, sharded=sharded))
    assert (found.micro_batch_tokens, found.num_shards) == (2 * 32, num_shards)


def test_a_run_continues_in_the_dtype_of_its_last_segment(planned, workspace, monkeypatch):
    """It went on, in between, on a processor without bfloat16."""
    monkeypatch.setattr(train_stage.machine, "has_bfloat16", lambda device: True)
    workspace.change(**{"train.numerics": "fast", "train.dtype": "auto"})
    segments = [{"dtype": "bfloat16"}, {"dtype": "float32"}]
    assert planned(World(), saved={"segments": segments}).dtype == torch.float32
    assert planned(World(), saved={"segments": segments[::-1]}).dtype == torch.bfloat16


@pytest.mark.parametrize("rank", [0, 1])
def test_the_main_rank_prints_the_size_of_the_run_and_all_warnings(monkeypatch, capsys, rank):
    monkeypatch.setattr(train_stage.preflight, "warnings", lambda *given: ["a setting is unusual"])
    training = SimpleNamespace(
        inputs=SimpleNamespace(device=torch.device("cpu"), params=None, config=None),
        plan=SimpleNamespace(lines=lambda: ["steps        20"]),
        state=SimpleNamespace(world=World(rank, 8, local_world_size=4)),
        warnings=["memory is short"],
        threads=SimpleNamespace(threads=3, warnings=lambda: ["a core is busy"]),
    )

    train_stage.print_plan(training)

    out = "device       cpu, 3 threads\nsteps        20\nprocesses    8, 4 on this host\n"
    err = "warning: a setting is unusual\nwarning: memory is short\nwarning: a core is busy\n"
    assert capsys.readouterr() == ((out, err) if rank == 0 else ("", ""))


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
    slow_down(train_stage.TrainingState, "digest", 0.2)
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
    monkeypatch.setattr(train_stage, "checkpoint_interval_s", lambda every_s, last_s: last_saves_s.append(last_s) or 0)
    slow_down(train_stage.checkpoints, "save_checkpoint", 0.02)
    workspace.change(**{"train.seed": 31})  # a run of its own

    assert train_stage.main(ARGUMENTS) == 0

    run = json.loads(Path("data/models/model.json").read_text())["fingerprint"]
    all_saves_s = json.loads(Path(".runs", run, "timing.json").read_text())["saving_seconds"][-1]
    assert last_saves_s[0] == 0 and min(last_saves_s[1:]) >= 0.02
    assert sum(last_saves_s) <= 1.01 * all_saves_s


@pytest.mark.parametrize(("device", "thread"), [("cpu", False), ("cuda", True)])
def test_a_thread_writes_the_checkpoints_of_a_gpu(monkeypatch, device, thread):
    chosen = []
    monkeypatch.setattr(
        train_stage, "CheckpointWriter", lambda *arguments, beside_training: chosen.append(beside_training)
    )
    inputs = SimpleNamespace(folder=Path("run"), device=torch.device(device))

    train_stage.checkpoint_writer(SimpleNamespace(inputs=inputs), set())

    assert chosen == [thread]


def test_a_checkpoint_that_takes_long_is_saved_less_often():
    """Saving takes 2 % of a run at most; 0 asks for a checkpoint after every step."""
    assert train_stage.checkpoint_interval_s(30, 0.1) == 30
    assert train_stage.checkpoint_interval_s(30, 2.0) == 100
    assert train_stage.checkpoint_interval_s(0, 2.0) == 0


@pytest.mark.parametrize(
    ("numerics", "device", "digests"),
    [("fast", "cpu", ["abc"]), ("fast", "cuda", [""]), ("exact", "cpu", ["abc"]), ("exact", "cuda", ["abc"])],
)
def test_a_validation_in_fast_numerics_on_a_gpu_leaves_out_the_digest(monkeypatch, numerics, device, digests):
    """It would copy the whole state from the GPU, on which fast numerics do not promise the same bits."""
    monkeypatch.setattr(train_stage.step, "validation_loss", lambda *arguments: 1.0)
    history = History(validation=[[1, 128, 1.0]])
    state = SimpleNamespace(
        history=history,
        seconds={},
        world=World(rank=1, world_size=2),
        digest=lambda: "abc",
        count_seconds=lambda name: None,
    )
    monkeypatch.setattr(train_stage.step, "record_validation", lambda *arguments: None)
    inputs = SimpleNamespace(device=torch.device(device), validation=None, params=SimpleNamespace(numerics=numerics))
    training = SimpleNamespace(inputs=inputs, state=state, dtype=torch.float32)
    train_stage.validate(training, SimpleNamespace(show_validation=lambda: None))
    assert history.digests == digests
