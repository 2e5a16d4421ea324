"""A wrong parameter is refused by its name and with exit code 2, before data is read or written.

The stages run in a folder without any data: one that read data before its parameters would end with another code. What
each parameter accepts is tested in tests/lm.
"""

import json
from pathlib import Path

import dvc.api
import pytest
from dvc.repo import Repo

from lm.core.params import read_section, read_yaml
from support import ROOT
from support.refusal import files_below, refused
from support.stages import STAGES, TINY, change_params, outputs_of, params_file, run_here, stage_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: a folder without data."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    stage_folder(tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    change_params(Path(), TINY)


def is_refused(capsys, stage: str, code: int, *parts: str) -> None:
    """Check that the stage ends with this code and sentence, and changes no file."""
    before = files_below(Path())

    status = run_here(stage)

    refused(status, capsys.readouterr().err, code, *parts)
    assert files_below(Path()) == before


def override(file: str, *assignments: str) -> None:
    """Change a file of parameters as `dvc exp run -S` does."""
    from dvc.utils.hydra import apply_overrides

    apply_overrides(file, list(assignments))


# A stage, a section that it reads, and an integer of that section.
SECTIONS = [
    ("fetch", "sources.local.fetch.split.near_duplicates", "ngram_words"),
    ("make_tokenizer", "tokenizers.bpe", "vocab_size"),
    ("tokenize_train", "sources.local.train", "start_char"),
    ("tokenize_val", "sources.local.validation", "start_char"),
    ("train", "train", "seq_len"),
    ("train", "models.micro", "d_model"),
    ("eval", "eval", "top_k"),
]


@pytest.mark.parametrize(("stage", "section", "key"), SECTIONS)
def test_a_decimal_point_an_unknown_and_a_missing_key_are_refused(folder, capsys, stage, section, key):
    """`-S +train.seq_lenn=1` writes an unknown key: DVC itself accepts any new one."""
    file = params_file(Path(), section)
    before = file.read_text()
    name = f"{section}.{key}"
    sentences = {
        f"{name}=512.0": f"{file}: {name} is 512.0, not an integer",
        f"+{name}n=1": f"{file}: {name}n is unknown; the nearest valid name is {name}",
        f"~{name}": f"{file}: {name} is missing",
    }

    for assignment, sentence in sentences.items():
        file.write_text(before)
        override(str(file), assignment)
        is_refused(capsys, stage, 2, sentence)


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ("audit", "plot")])
def test_a_repeated_key_is_refused(folder, capsys, stage):
    path = Path("params.yaml")
    repeated = path.read_text().replace("  top_k: 50", "  top_k: 60\n  top_k: 50")
    path.write_text(repeated)

    is_refused(capsys, stage, 2, "params.yaml: line ", 'duplicate key "top_k"')


# The stage, the parameter, its wrong value, and what the sentence says.
REFUSED = [
    ("fetch", "sources.local.fetch.kind", "s3", "sources.yaml: sources.local.fetch.kind is 's3'; it must be one of"),
    ("fetch", "sources.local.fetch.split.validation_fraction", 1.5, "validation_fraction is 1.5; it must be "),
    (
        "make_tokenizer",
        "tokenizers.bpe.vocab_size",
        256,
        "presets.yaml: tokenizers.bpe.vocab_size is 256; it must be from",
    ),
    ("tokenize_train", "sources.local.train.start_char", -1, "start_char is -1; it must be at least 0"),
    ("tokenize_train", "sources.local.train.num_chars", 0, "num_chars is 0; it must be at least 1, or null"),
    ("train", "train.optimizer", "sgd", "params.yaml: train.optimizer is 'sgd'; it must be one of muon, adamw"),
    ("train", "train.min_lr", 0.9, "train.min_lr is 0.9; it must be "),
    ("train", "train.peak_lr", "abc", "train.peak_lr is 'abc', not a finite number"),
    ("eval", "eval.temperature", -0.1, "eval.temperature is -0.1; it must be 0 or more"),
    ("train", "eval.sample_tokens", 1024, "eval.sample_tokens is 1024; it must be "),
    ("eval", "eval.stride_fraction", 0.0, "eval.stride_fraction is 0.0; it must be above 0"),
    # Names that do not exist.
    ("fetch", "data.source", "nope", "sources.nope is missing; there are: "),
    ("make_tokenizer", "tokenizer.name", "nope", "tokenizers.nope is missing; there are: "),
    ("train", "model.name", "nope", "models.nope is missing; there are: "),
    # Values that do not fit together.
    ("train", "train.seq_len", 48, "micro_batch_tokens is 256; it must be a multiple of seq_len 48"),
    ("train", "train.batch_tokens", 700, "batch_tokens is 700; it must be a multiple of micro_batch_tokens 256"),
    ("train", "models.micro.n_kv_head", 3, "models.micro.n_head is 2; it must be a multiple of n_kv_head (3)"),
    ("train", "models.micro.max_seq_len", 16, "seq_len is 32; it must be at most models.micro.max_seq_len 16"),
]


@pytest.mark.parametrize(("stage", "name", "value", "sentence"), REFUSED)
def test_a_wrong_value_is_refused(folder, capsys, stage, name, value, sentence):
    change_params(Path(), {name: value})

    is_refused(capsys, stage, 2, sentence)


def hub_source(**changes) -> dict:
    """Return the section `fetch` of a source of the hub, with other values for some keys."""
    valid = {
        "kind": "hub",
        "repo": "o/n",
        "revision": "a" * 40,
        "files": {"train": ["x.parquet"]},
        "column": "text",
    }
    return valid | changes


FETCH = "sources.local.fetch"
HUB_TOKENIZER = {"kind": "huggingface", "repo": "../n", "revision": "main"}


@pytest.mark.parametrize(
    ("stage", "name", "value", "refused_name"),
    [
        ("fetch", FETCH, hub_source(files={"../out": ["x.parquet"]}), f"{FETCH}.files"),
        ("fetch", FETCH, hub_source(files={"train": ["a/../../x.parquet"]}), f"{FETCH}.files"),
        ("fetch", FETCH, hub_source(repo="o/n; touch pwned"), f"{FETCH}.repo"),
        ("fetch", FETCH, hub_source(revision=" "), f"{FETCH}.revision"),
        ("fetch", f"{FETCH}.include", "../*", f"{FETCH}.include"),
        ("make_tokenizer", "tokenizers.bpe", HUB_TOKENIZER, "tokenizers.bpe.repo"),
    ],
)
def test_a_name_that_leads_out_of_an_output_or_to_a_shell_is_refused(folder, capsys, stage, name, value, refused_name):
    change_params(Path(), {name: value})

    file = params_file(Path(), name).name
    is_refused(capsys, stage, 2, file, refused_name)


def test_settings_of_the_machine_are_typed_too(folder, capsys):
    change_params(Path(), {"tokenize.chunk_chars": 1e6}, "runtime.yaml")

    is_refused(capsys, "tokenize_train", 2, "runtime.yaml: tokenize.chunk_chars is 1000000.0, not an integer")


TRAIN = "sources.local.train"
VALIDATION = "sources.local.validation"


@pytest.mark.parametrize(
    ("stage", "name", "value", "code", "sentence"),
    [
        ("tokenize_train", f"{TRAIN}.start_char", 10**6, 3, "start_char is 1000000"),
        ("tokenize_train", f"{TRAIN}.num_chars", 10**6, 3, "too many"),
        ("tokenize_train", f"{TRAIN}.split", "text", 3, "has no split 'text'"),
        ("tokenize_val", f"{VALIDATION}.split", "train", 2, "train and validation share characters 0"),
        ("make_tokenizer", f"{TRAIN}.start_char", 10**6, 3, "start_char is 1000000"),
    ],
)
def test_a_slice_that_the_text_does_not_have_is_refused(project, capsys, stage, name, value, code, sentence):
    change_params(Path(), {name: value})

    is_refused(capsys, stage, code, sentence)


def test_every_spelling_of_a_number_is_the_value_that_dvc_records(tmp_path, monkeypatch):
    """DVC writes `-S rates.swept=1e-5` as 1e-05, which is a string in YAML 1.1."""
    monkeypatch.chdir(tmp_path)
    spellings = {
        "a": "3e-4",
        "b": "1e-05",
        "c": "1e3",
        "d": "1E-4",
        "e": ".5",
        "f": "5",
        "g": "2.",
        "swept": "0",
    }
    lines = [f"  {name}: {text}\n" for name, text in spellings.items()]
    path = Path("params.yaml")
    path.write_text("rates:\n" + "".join(lines))
    override("params.yaml", "rates.swept=1e-5")
    assert "swept: 1e-05\n" in path.read_text()

    read = read_section("params.yaml", "rates", dict[str, float])
    recorded = Repo.init(no_scm=True).params.show(["params.yaml"])

    expected = {name: float(text) for name, text in spellings.items()} | {"swept": 1e-5}
    assert read == expected
    assert all(type(value) is float for value in read.values())
    assert recorded[""]["data"]["params.yaml"]["data"]["rates"] == read


@pytest.mark.parametrize("name", ["params.yaml", "presets.yaml", "sources.yaml"])
def test_the_shipped_files_are_read_as_dvc_reads_them(name):
    assert read_yaml(ROOT / name) == dvc.api.params_show(name, repo=str(ROOT))


def test_no_parameter_reaches_a_shell_or_names_an_output():
    for stage, entry in STAGES.items():
        paths = outputs_of(stage)
        assert "${" not in json.dumps([entry["cmd"], *paths])
        for path in paths:
            assert not path.startswith(("/", "~")), path
            assert ".." not in path, path
