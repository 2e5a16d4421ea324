"""A wrong parameter is refused by its name and with exit code 2, before data is read or written.

The stages run in a folder without any data: one that read data before its parameters would end with another code. What
each parameter accepts is tested in tests/lm.
"""

import json
from pathlib import Path

import dvc.api
import pytest
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from lm.core.params import read_section, read_yaml
from support import ROOT
from support.refusal import files_below, refused
from support.stages import STAGES, TINY, change_params, outputs_of, params_file, run_here, stage_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: a folder without data."""
    stage_folder(tmp_path / "ws")
    monkeypatch.chdir(tmp_path / "ws")
    change_params(Path(), TINY)


def is_refused(capsys, stage: str, code: int, *parts: str) -> None:
    """Check that the stage ends with this code and sentence, and changes no file."""
    before = files_below(Path())

    status = run_here(stage)

    refused(status, capsys.readouterr().err, code, *parts)
    assert files_below(Path()) == before


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
def test_a_wrong_type_and_unknown_missing_and_repeated_keys_are_refused(folder, capsys, stage, section, key):
    """`-S +train.seq_lenn=1` writes an unknown key: DVC itself accepts any new one."""
    file = params_file(Path(), section)
    before = file.read_text()
    name = f"{section}.{key}"
    facts = {
        f"{name}=512.0": [f"{name} is 512.0", "integer"],
        f"+{name}n=1": [f"{name}n is unknown", f"nearest valid name is {name}"],
        f"~{name}": [f"{name} is missing"],
    }

    for assignment, words in facts.items():
        file.write_text(before)
        apply_overrides(str(file), [assignment])
        is_refused(capsys, stage, 2, f"{file}: ", *words)

    file.write_text(before + "again: 1\nagain: 1\n")
    is_refused(capsys, stage, 2, f"{file}: line ", 'duplicate key "again"')


# The stage, the parameter, its wrong value, and what must be. What each parameter accepts is tested in tests/lm.
REFUSED = [
    ("fetch", "sources.local.fetch.kind", "s3", "one of"),
    ("fetch", "sources.local.fetch.split.validation_fraction", 1.5, ""),
    ("make_tokenizer", "tokenizers.bpe.vocab_size", 256, "from 257"),
    ("tokenize_train", "sources.local.train.num_chars", 0, "at least 1"),
    ("train", "train.optimizer", "sgd", "muon, adamw"),
    ("train", "train.peak_lr", "abc", "finite number"),
    ("train", "eval.sample_tokens", 1024, ""),
    ("eval", "eval.temperature", -0.1, "0 or more"),
    # Values that do not fit together.
    ("train", "train.seq_len", 48, "micro_batch_tokens is 256"),
    ("train", "train.batch_tokens", 700, "micro_batch_tokens 256"),
    ("train", "models.micro.n_kv_head", 3, "n_head is 2"),
    ("train", "models.micro.max_seq_len", 16, "seq_len is 32"),
]


@pytest.mark.parametrize(("stage", "name", "value", "needed"), REFUSED)
def test_a_wrong_value_is_refused(folder, capsys, stage, name, value, needed):
    change_params(Path(), {name: value})

    is_refused(capsys, stage, 2, name.split(".")[-1], str(value), needed)


@pytest.mark.parametrize(
    ("stage", "name", "section"),
    [
        ("fetch", "data.source", "sources"),
        ("make_tokenizer", "tokenizer.name", "tokenizers"),
        ("train", "model.name", "models"),
    ],
)
def test_a_name_that_does_not_exist_is_refused(folder, capsys, stage, name, section):
    change_params(Path(), {name: "nope"})

    is_refused(capsys, stage, 2, f"{section}.nope is missing; there are: ")


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
        ("fetch", f"{FETCH}.exclude", "/etc/*", f"{FETCH}.exclude"),
        ("make_tokenizer", "tokenizers.bpe", HUB_TOKENIZER, "tokenizers.bpe.repo"),
    ],
)
def test_a_name_that_leads_out_of_an_output_or_to_a_shell_is_refused(folder, capsys, stage, name, value, refused_name):
    change_params(Path(), {name: value})

    file = params_file(Path(), name).name
    is_refused(capsys, stage, 2, file, refused_name)


def test_settings_of_the_machine_are_typed_too(folder, capsys):
    change_params(Path(), {"tokenize.num_processes": 1.5}, "runtime.yaml")

    is_refused(capsys, "tokenize_train", 2, "runtime.yaml: tokenize.num_processes is 1.5, not an integer")


TRAIN = "sources.local.train"
VALIDATION = "sources.local.validation"


@pytest.mark.parametrize(
    ("stage", "name", "value", "code", "sentence"),
    [
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
    spellings = ["3e-4", "1e-05", "1e3", "1E-4", ".5", "5", "2."]
    lines = [f"  r{number}: {text}\n" for number, text in enumerate(spellings)]
    path = Path("params.yaml")
    path.write_text("rates:\n  swept: 0\n" + "".join(lines))
    apply_overrides("params.yaml", ["rates.swept=1e-5"])
    assert "swept: 1e-05\n" in path.read_text()

    read = read_section("params.yaml", "rates", dict[str, float])
    recorded = Repo.init(no_scm=True).params.show(["params.yaml"])

    assert list(read.values()) == [1e-5, *map(float, spellings)]
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
