"""`python src check_parameters` finds the wrong values of all stages at once."""

import os
from pathlib import Path

import pytest

from support.refusal import refused
from support.stages import change_params, stage_folder
from tools.check_parameters.cli import main

# A value of each stage's section, and of each kind of section that the parameters select.
CASES = [
    ("params.yaml", "local.path", 1),
    ("params.yaml", "train.seq_len", 0),
    ("params.yaml", "eval.top_k", 0),
    ("runtime.yaml", "tokenize.num_processes", 0),
    ("runtime.yaml", "train.num_processes", 0),
    ("sources.yaml", "sources.torch_headers.fetch.sha256", 1),
    ("sources.yaml", "sources.torch_headers.train.start_char", -1),
    ("sources.yaml", "sources.torch_headers.validation.num_chars", 0),
    ("presets.yaml", "selections.none.min_chars", 0),
    ("presets.yaml", "tokenizers.bpe.vocab_size", 1),
    ("presets.yaml", "models.tiny.n_layer", 0),
]
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
    for file, name, value in CASES:
        change_params(folder, {name: value}, file)

    assert main([]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(CASES)
    for file, name, value in CASES:
        assert f"{file}: {name} is {value}" in "\n".join(lines)


def fill(folder: Path, names: list[str]) -> None:
    """Make the folder `begin`, from which the run starts, with empty files."""
    for name in names:
        (folder / "begin" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "begin" / name).touch()
    change_params(folder, {"train.init_from": "begin"})


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (["config.json", "model.safetensors"], "`python src export_hf --from begin data/start`"),
        (["ab12/run.json", "ab12/checkpoint-000000003.pt"], "`python src verify --retrain STEP --weights data/start`"),
        (["notes.txt"], "model.json"),
    ],
)
def test_a_folder_that_no_run_can_start_from_is_refused_with_the_right_command(folder, capsys, names, remedy):
    fill(folder, names)

    refused(main([]), capsys.readouterr().err, 2, "params.yaml: train.init_from is begin, ", remedy)


@pytest.mark.parametrize("names", [[".gitignore"], ["model.json", "best_model_params.pt", "tokenizer/meta.json"]])
def test_a_folder_that_a_run_can_start_from_is_accepted(folder, names):
    fill(folder, names)

    assert main([]) == 0


@pytest.mark.parametrize("name", USED)
def test_a_name_that_selects_nothing_or_is_a_number_is_refused(folder, capsys, name):
    for value, found in (("nope", "nope is missing; there are: "), (5, f"{name} is 5")):
        change_params(folder, {name: value})

        refused(main([]), capsys.readouterr().err, 2, found)


def test_a_section_that_nothing_reads_is_refused(folder, capsys):
    """DVC's advice for a wrong name after -S is a `+` before it, which adds such a section."""
    change_params(folder, {"trian.seq_len": 64, "tokenizers.bpe.vocab_size": 4096}, "params.yaml")

    assert main([]) == 2

    said = capsys.readouterr().err
    assert "params.yaml: trian is unknown; the nearest valid name is train" in said
    assert "params.yaml: tokenizers is unknown; it is a section of presets.yaml: -S presets.yaml:" in said


# Metrics of an earlier run.

SCORES = ["metrics/data.json", "metrics/train.json", "metrics/eval.json"]


def check_in_stage(monkeypatch, stage: str) -> list[str]:
    """Check the parameters as DVC does in a stage; return the metrics that are left."""
    monkeypatch.setenv("DVC_STAGE", stage)
    assert main([]) == 0
    return [path for path in SCORES if os.path.exists(path)]


def test_a_stage_deletes_the_metrics_that_a_later_stage_writes_again(committed, monkeypatch):
    cases = [
        ({}, "train", SCORES[:2]),  # of other code or text
        ({}, "fetch", SCORES),  # perhaps the text is the same
        ({"eval.stride_fraction": 1.0}, "fetch", SCORES[:2]),
        ({"eval.stride_fraction": 0.5, "train.seed": 2}, "other/dvc.yaml:train", SCORES),  # of another pipeline
        ({}, "fetch", SCORES[:1]),
    ]
    content_of = {path: Path(path).read_bytes() for path in SCORES}

    # The command by hand deletes nothing.
    monkeypatch.delenv("DVC_STAGE", raising=False)
    assert main([]) == 0
    assert all(map(os.path.exists, SCORES))

    for changed, stage, left in cases:
        for path, content in content_of.items():
            Path(path).write_bytes(content)
        committed.change(**changed)

        assert check_in_stage(monkeypatch, stage) == left, (stage, changed)

    # The first run of all has no dvc.lock.
    Path("dvc.lock").unlink()
    assert check_in_stage(monkeypatch, "fetch") == []
