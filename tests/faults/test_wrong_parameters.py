"""A wrong parameter is refused by its name and with exit code 2, before data is read or written.

The stages run in a folder without any data: one that read data before its parameters would end with another code. What
each parameter accepts is tested in tests/lm.
"""

import json
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from lm.core.params import read_section
from support.refusal import files_below, refused
from support.stages import STAGES, TINY, change_params, outputs_of, run_here, stage_folder

FETCH = "sources.local.fetch"
HUB_SOURCE = {"kind": "hub", "repo": "o/n", "revision": "a" * 40, "files": {"train": ["x.parquet"]}, "column": "text"}
HUB_TOKENIZER = {"kind": "huggingface", "repo": "../n", "revision": "main"}


@pytest.mark.parametrize(
    ("stage", "name", "value", "sentence"),
    [
        ("fetch", f"{FETCH}.kind", "s3", f"sources.yaml: {FETCH}.kind is 's3'"),
        ("fetch", f"{FETCH}.encoding", "hex", f"sources.yaml: {FETCH}.encoding is 'hex'"),
        ("make_tokenizer", "tokenizer.name", "nope", "presets.yaml: tokenizers.nope is missing; there are: "),
        ("tokenize_train", "sources.local.train.num_chars", 0, "at least 1"),
        ("tokenize_val", "sources.local.validation.split", "train", "train and validation share characters 0"),
        (
            "train",
            "train.seq_lenn",
            1,
            "params.yaml: train.seq_lenn is unknown; the nearest",
        ),
        ("train", "train.seq_len", 48, "micro_batch_tokens is 256"),
        ("train", "models.micro.n_kv_head", 3, "n_head is 2"),
        ("eval", "eval.temperature", -0.1, "0 or more"),
        # A name that leads out of an output, or to a shell.
        ("fetch", FETCH, HUB_SOURCE | {"files": {"../out": ["x.parquet"]}}, f"{FETCH}.files"),
        ("fetch", FETCH, HUB_SOURCE | {"files": {"train": ["a/../../x.parquet"]}}, f"{FETCH}.files"),
        ("fetch", FETCH, HUB_SOURCE | {"repo": "o/n; touch pwned"}, f"{FETCH}.repo"),
        ("fetch", FETCH, HUB_SOURCE | {"revision": " "}, f"{FETCH}.revision"),
        ("fetch", f"{FETCH}.include", "../*", f"{FETCH}.include"),
        ("fetch", f"{FETCH}.exclude", "/etc/*", f"{FETCH}.exclude"),
        ("make_tokenizer", "tokenizers.bpe", HUB_TOKENIZER, "tokenizers.bpe.repo"),
    ],
)
def test_a_wrong_value_is_refused_before_data_is_read(tmp_path, monkeypatch, capsys, stage, name, value, sentence):
    monkeypatch.chdir(stage_folder(tmp_path / "without data"))
    change_params(Path(), TINY | {name: value})
    before = files_below(Path())

    status = run_here(stage)

    refused(status, capsys.readouterr().err, 2, sentence)
    assert files_below(Path()) == before


def test_every_spelling_of_a_number_is_the_value_that_dvc_records(tmp_path, monkeypatch):
    """DVC writes `-S rates.swept=1e-5` as 1e-05, which is a string in YAML 1.1."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("rates: {swept: 0, a: 3e-4, b: 1E-4, c: .5, d: 2.}\n")
    apply_overrides("params.yaml", ["rates.swept=1e-5"])

    read = read_section("params.yaml", "rates", dict[str, float])
    recorded = Repo.init(no_scm=True).params.show(["params.yaml"])

    assert list(read.values()) == [1e-5, 3e-4, 1e-4, 0.5, 2.0]
    assert recorded[""]["data"]["params.yaml"]["data"]["rates"] == read


def test_no_parameter_reaches_a_shell_or_names_an_output():
    for stage, entry in STAGES.items():
        paths = outputs_of(stage)
        assert "${" not in json.dumps([entry["cmd"], *paths])
        for path in paths:
            assert not path.startswith(("/", "~")), path
            assert ".." not in path, path
