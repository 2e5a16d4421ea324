"""`python src check_parameters` finds the wrong values of all stages at once."""

from pathlib import Path

import pytest

from support.refusal import refused
from support.stages import change_params, stage_folder
from support.workspace import Workspace
from tools.check_parameters import main

WRONG = {
    "params.yaml": [
        ("local.path", 1, "local.path is 1, not a string"),
        ("train.seq_len", 0, "train.seq_len is 0; it must be at least 1"),
        ("eval.top_k", 0, "eval.top_k is 0; it must be at least 1"),
    ],
    "runtime.yaml": [
        ("tokenize.chunk_chars", 0, "tokenize.chunk_chars is 0; it must be at least 1"),
        ("train.num_processes", 0, "train.num_processes is 0; it must be at least 1"),
    ],
    "sources.yaml": [
        ("sources.torch_headers.fetch.sha256", 1, "sources.torch_headers.fetch.sha256 is 1, not a string"),
        ("sources.torch_headers.train.start_char", -1, "sources.torch_headers.train.start_char is -1"),
        ("sources.torch_headers.validation.num_chars", 0, "sources.torch_headers.validation.num_chars is 0"),
        ("sources.torch_headers.prompts", "x", "sources.torch_headers.prompts is 'x'"),
    ],
    "presets.yaml": [
        ("selections.none.min_chars", 0, "selections.none.min_chars is 0; it must be at least 1"),
        ("tokenizers.bpe.vocab_size", 1, "tokenizers.bpe.vocab_size is 1; it must be from 257"),
        ("models.tiny.n_layer", 0, "models.tiny.n_layer is 0; it must be above 0"),
    ],
}
CASES = [(file, *case) for file, cases in WRONG.items() for case in cases]
USED = {
    "data.source": "torch_headers",
    "selection.name": "none",
    "tokenizer.name": "bpe",
    "model.name": "tiny",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = stage_folder(tmp_path)
    change_params(folder, USED)
    return folder


def test_every_wrong_value_of_every_stage_is_one_line(folder, capsys):
    assert main([]) == 0
    for file, name, value, _ in CASES:
        change_params(folder, {name: value}, file)

    status = main([])

    said = capsys.readouterr().err
    assert status == 2
    assert len(said.splitlines()) == len(CASES)
    for file, _, _, sentence in CASES:
        assert f"{file}: {sentence}" in said


def test_lengths_that_the_model_does_not_take_are_one_line_each(folder, capsys):
    tokens = dict.fromkeys(("seq_len", "micro_batch_tokens", "batch_tokens", "max_tokens"), 4096)
    changes = {f"train.{name}": value for name, value in tokens.items()}
    change_params(folder, {**changes, "train.warmup_steps": 0, "eval.sample_tokens": 2048})

    status = main([])

    said = capsys.readouterr().err
    assert status == 2
    assert "params.yaml: train.seq_len is 4096; it must be at most models.tiny.max_seq_len 2048" in said
    assert "params.yaml: eval.sample_tokens is 2048; it must be 1 or more, below models.tiny.max_seq_len 2048" in said


REBUILD = "python src verify --retrain STEP --weights data/start"
STARTS = {
    "of Hugging Face": (["config.json", "model.safetensors"], "`python src export_hf --from {} data/start`"),
    "an export": (["config.json", "model.json", "model.safetensors"], "`python src export_hf --from {} data/start`"),
    "of runs": (["ab12/run.json", "ab12/checkpoint-000000003.pt"], f"`{REBUILD}`"),
    "of a run": (["run.json", "checkpoint-000000003.pt"], f"`{REBUILD}`"),
    "of other files": (["notes.txt"], "it has no model.json; name one that"),
    "without weights": (["model.json"], "it has no best_model_params.pt; name one that"),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_folder_that_no_run_can_start_from_is_refused_with_the_right_command(folder, capsys, case):
    names, remedy = STARTS[case]
    for name in names:
        (folder / "begin" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "begin" / name).touch()
    change_params(folder, {"train.init_from": "begin"})

    status = main([])

    refused(status, capsys.readouterr().err, 2, "params.yaml: train.init_from is begin, ", remedy.format("begin"))


@pytest.mark.parametrize("names", [[], [".gitignore"], ["model.json", "best_model_params.pt", "tokenizer/meta.json"]])
def test_a_folder_that_a_run_can_start_from_is_accepted(folder, names):
    (folder / "begin").mkdir()
    for name in names:
        (folder / "begin" / name).parent.mkdir(exist_ok=True)
        (folder / "begin" / name).touch()
    change_params(folder, {"train.init_from": "begin"})

    assert main([]) == 0


@pytest.mark.parametrize("name", USED)
def test_a_name_that_selects_nothing_is_refused_with_the_known_ones(folder, capsys, name):
    change_params(folder, {name: "nope"})

    status = main([])

    refused(status, capsys.readouterr().err, 2, "nope is missing; there are: ")


@pytest.mark.parametrize("name", USED)
def test_a_name_that_is_a_number_is_refused(folder, capsys, name):
    change_params(folder, {name: 5})

    status = main([])

    refused(status, capsys.readouterr().err, 2, f"{name} is 5, not a string")


# Metrics of a former run.

SCORES = ["metrics/data.json", "metrics/train.json", "metrics/eval.json"]


@pytest.fixture
def rerun(finished, tmp_path, monkeypatch) -> Workspace:
    """The small pipeline after its run, as the working directory."""
    workspace = Workspace(tmp_path / "ws", finished)
    monkeypatch.chdir(workspace.folder)
    return workspace


def check_in_stage(monkeypatch, stage: str) -> list[str]:
    """Check the parameters as DVC does in a stage; return the metrics that are left."""
    monkeypatch.setenv("DVC_STAGE", stage)
    assert main([]) == 0
    return [path for path in SCORES if Path(path).exists()]


@pytest.mark.parametrize(
    ("stage", "changed", "left"),
    [
        ("train", {}, SCORES[:2]),  # of other code or text
        ("fetch", {}, SCORES),  # perhaps the text is the same
        ("fetch", {"eval.stride_fraction": 1.0}, SCORES[:2]),
        ("fetch", {"train.seed": 2}, SCORES[:1]),
        ("fetch", {"selection.name": "filtered"}, SCORES),  # perhaps its rules drop nothing
        ("audit", {"train.seed": 2}, SCORES[:2]),  # which training does not need, and may run after it
    ],
)
def test_a_stage_deletes_the_metrics_that_a_later_stage_writes_again(rerun, monkeypatch, capsys, stage, changed, left):
    rerun.change(**changed)

    assert check_in_stage(monkeypatch, stage) == left

    said = capsys.readouterr().out
    assert [path for path in SCORES if f"{path}: deleted" in said] == [path for path in SCORES if path not in left]


def test_a_run_without_a_lock_has_no_metrics_of_its_own(rerun, monkeypatch):
    Path("dvc.lock").unlink()

    assert check_in_stage(monkeypatch, "fetch") == []


def test_the_first_run_keeps_the_metrics_that_it_has_written(rerun):
    """DVC may run `audit`, which training does not need, after training."""
    assert all(Path(path).exists() for path in SCORES)


def test_the_command_by_hand_and_other_pipelines_delete_no_metric(rerun, monkeypatch):
    rerun.change(**{"train.seed": 2})
    monkeypatch.delenv("DVC_STAGE", raising=False)

    assert main([]) == 0
    left = check_in_stage(monkeypatch, "other/dvc.yaml:train")

    assert left == SCORES
