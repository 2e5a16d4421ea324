"""Faults 1 to 5: parameters. A wrong one is refused with exit code 2 and one sentence, before data is read or written.

The stages run in a small copy of the repository without any data: a stage that read data before it checked
its parameters would end with exit code 4.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import dvc.api
import pytest
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from lm.core.params import read_section, read_yaml
from support import ROOT
from support.refusal import files_below, refused
from support.stages import command_of, params_file
from support.workspace import Workspace

STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]
# A stage, a section that it reads, and a key of that section.
SECTIONS = [
    ("fetch", "sources.small.fetch.split.near_duplicates", "ngram_words"),
    ("make_tokenizer", "tokenizers.bpe", "vocab_size"),
    ("tokenize_train", "sources.small.train", "start_char"),
    ("tokenize_val", "sources.small.validation", "start_char"),
    ("train", "train", "seq_len"),
    ("train", "models.micro", "d_model"),
    ("eval", "eval", "top_k"),
]
HUB = {"kind": "hub", "repo": "o/n", "revision": "a" * 40, "files": {"train": ["x.parquet"]}, "column": "text"}
SET = {"kind": "datasets", "repo": "o/n", "revision": "main", "config": None, "splits": {"t": "t"}, "column": "t"}
LOCAL = {"kind": "local", "include": "*", "column": "text", "separator": None, "split": None}


def file_of(name: str) -> str:
    """Return the file that holds a parameter."""
    return params_file(Path(), name).name


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("parameters") / "ws")
    workspace.make_small()
    presets = {"sources": ["local", "small"], "tokenizers": ["bpe"], "models": ["micro"]}
    for section, names in presets.items():  # the other presets would be read hundreds of times
        workspace.change(**{section: {name: workspace.get(f"{section}.{name}") for name in names}})
    return workspace


@pytest.fixture
def workspace(template, monkeypatch):
    """Make the copy the working directory; restore its parameters and settings afterwards."""
    files = ("params.yaml", "presets.yaml", "sources.yaml", "runtime.yaml")
    before = {name: (template.folder / name).read_text() for name in files}
    monkeypatch.chdir(template.folder)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    yield template
    for name, text in before.items():
        (template.folder / name).write_text(text)


@pytest.fixture
def ends_with_2(workspace, capsys):
    """Return a function that checks: the stage refuses, last with all `parts` in a sentence, and changes no file."""

    def check(stage: str, *parts: str, before: Sequence[str] = ()) -> None:
        script, *arguments = command_of(STAGES[stage]).split()[1:]
        files = files_below(workspace.folder)
        status, said = importlib.import_module(Path(script).stem).main(arguments), capsys.readouterr().err
        refused(status, said, 2, *parts)
        assert all(f"error: {sentence}\n" in said for sentence in before)
        assert files_below(workspace.folder) == files

    return check


def test_01_every_spelling_of_a_number_is_the_value_that_dvc_records(tmp_path, monkeypatch):
    """DVC writes `-S rates.swept=1e-5` as 1e-05, which is a string in YAML 1.1."""
    monkeypatch.chdir(tmp_path)
    spellings = {"a": "3e-4", "b": "1e-05", "c": "1e3", "d": "1E-4", "e": ".5", "f": "5", "g": "2.", "swept": "0"}
    Path("params.yaml").write_text("rates:\n" + "".join(f"  {name}: {text}\n" for name, text in spellings.items()))
    apply_overrides("params.yaml", ["rates.swept=1e-5"])
    assert "swept: 1e-05\n" in Path("params.yaml").read_text()
    read = read_section("params.yaml", "rates", dict[str, float])
    recorded = Repo.init(no_scm=True).params.show(["params.yaml"])
    assert read == {name: float(text) for name, text in spellings.items()} | {"swept": 1e-5}
    assert recorded[""]["data"]["params.yaml"]["data"]["rates"] == read
    assert all(type(value) is float for value in read.values())


@pytest.mark.parametrize("name", ["params.yaml", "presets.yaml", "sources.yaml"])
def test_01_the_shipped_files_are_read_as_dvc_reads_them(name):
    assert read_yaml(ROOT / name) == dvc.api.params_show(name, repo=str(ROOT))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", ["abc", "", True, None, [0.1], {"a": 1}, NAN, INF, -INF, "512"])
def test_02_a_value_that_is_not_a_number_is_refused(workspace, ends_with_2, value):
    workspace.change(**{"train.peak_lr": value, "train.seq_len": value})
    first = f"params.yaml: train.seq_len is {value!r}, not an integer"
    ends_with_2("train", f"params.yaml: train.peak_lr is {value!r}, not a finite number", before=[first])


def test_02_settings_of_the_machine_are_typed_too(workspace, ends_with_2):
    path = workspace.folder / "runtime.yaml"
    path.write_text(path.read_text().replace("chunk_chars: 1000000", "chunk_chars: 1e6"))
    ends_with_2("tokenize_train", "runtime.yaml: tokenize.chunk_chars is 1000000.0, not an integer")


@pytest.mark.parametrize(("stage", "section", "key"), SECTIONS)
def test_02_03_a_decimal_point_an_unknown_and_a_missing_key_are_refused_in_any_stage(
    workspace, ends_with_2, stage, section, key
):
    """`-S +train.seq_lenn=1` writes an unknown key: DVC itself accepts any new one."""
    file, before = file_of(section), workspace.get(f"{section}.{key}")
    workspace.change(**{f"{section}.{key}": 512.0})
    ends_with_2(stage, f"{file}: {section}.{key} is 512.0, not an integer")
    workspace.change(**{f"{section}.{key}": before})
    apply_overrides(file, [f"+{section}.{key}n=1"])
    ends_with_2(stage, f"{file}: {section}.{key}n is unknown; the nearest valid name is {section}.{key}")
    apply_overrides(file, [f"~{section}.{key}n", f"~{section}.{key}"])
    ends_with_2(stage, f"{file}: {section}.{key} is missing")


@pytest.mark.parametrize("stage", ["fetch", "make_tokenizer", "tokenize_train", "tokenize_val", "train", "eval"])
def test_03_a_duplicate_key_is_refused(workspace, ends_with_2, stage):
    path = workspace.folder / "params.yaml"
    path.write_text(path.read_text().replace("  top_k: 50", "  top_k: 60\n  top_k: 50"))
    ends_with_2(stage, "params.yaml: line ", 'found duplicate key "top_k"; keep one of them')


@pytest.mark.parametrize(
    ("stage", "changes", "sentence"),
    [
        ("fetch", {"data.source": "nope"}, "sources.nope is missing; there are: local, small"),
        ("make_tokenizer", {"tokenizer.name": "nope"}, "tokenizers.nope is missing; there are: bpe"),
        ("train", {"model.name": "nope"}, "models.nope is missing; there are: micro"),
        ("train", {"train.optimizer": "sgd"}, "train.optimizer is 'sgd'; it must be one of muon, adamw"),
        ("fetch", {"sources.small.fetch.kind": "s3"}, "sources.small.fetch.kind is 's3'; it must be one of"),
    ],
)
def test_03_an_unknown_name_is_refused_with_the_known_ones(workspace, ends_with_2, stage, changes, sentence):
    workspace.change(**changes)
    ends_with_2(stage, f"{file_of(sentence)}: {sentence}")


@pytest.mark.parametrize(
    ("stage", "changes", "sentence"),
    [
        ("fetch", {"sources.small.fetch.split.near_duplicates.ngram_words": 0}, "ngram_words is 0, needed: 1 to 100"),
        ("make_tokenizer", {"tokenizers.bpe.vocab_size": 256}, "vocab_size is 256, needed: from 257"),
        ("tokenize_train", {"sources.small.train.start_char": -1}, "start_char is -1, needed: at least 0"),
        ("tokenize_train", {"sources.small.train.num_chars": 0}, "num_chars is 0, needed: at least 1, or null"),
        ("tokenize_val", {"sources.small.validation.start_char": -1}, "start_char is -1, needed: at least 0"),
        ("train", {"train.peak_lr": 0.0}, "train.peak_lr is 0.0, needed: above 0"),
        ("train", {"train.peak_lr": -1.0}, "train.peak_lr is -1.0, needed: above 0"),
        ("train", {"train.min_lr": 0.5}, "train.min_lr is 0.5, needed: from 0 to peak_lr"),
        ("train", {"train.warmup_steps": 20}, "train.warmup_steps is 20, needed: fewer than the run's 20 steps"),
        ("train", {"train.seq_len": 0}, "train.seq_len is 0, needed: at least 1"),
        ("train", {"train.seq_len": 48}, "micro_batch_tokens is 512, needed: a multiple of seq_len 48"),
        ("train", {"train.batch_tokens": 700}, "batch_tokens is 700, needed: a multiple of micro_batch_tokens 512"),
        ("train", {"train.max_tokens": 100}, "max_tokens is 100, needed: at least batch_tokens 512"),
        ("train", {"train.decay_fraction": 1.5}, "train.decay_fraction is 1.5, needed: above 0, at most 1"),
        ("train", {"train.grad_clip": 0.0}, "train.grad_clip is 0.0, needed: above 0"),
        ("train", {"train.beta2": 1.0}, "train.beta2 is 1.0, needed: from 0 to below 1"),
        ("train", {"models.micro.n_layer": 0}, "models.micro.n_layer is 0, needed: above 0"),
        ("train", {"models.micro.n_kv_head": 3}, "models.micro.n_head is 2, needed: a multiple of n_kv_head (3)"),
        ("train", {"models.micro.n_head": 3}, "n_head is 3, needed: a multiple of n_kv_head"),
        ("train", {"models.micro.head_dim": 7}, "models.micro.head_dim is 7, needed: an even number"),
        ("train", {"models.micro.max_seq_len": 16}, "seq_len is 32, needed: at most models.micro.max_seq_len 16"),
        ("eval", {"eval.stride_fraction": 0.0}, "eval.stride_fraction is 0.0, needed: above 0"),
        ("eval", {"eval.temperature": -0.1}, "eval.temperature is -0.1, needed: 0 or more"),
    ],
)
def test_04_a_value_out_of_range_is_refused(workspace, ends_with_2, stage, changes, sentence):
    workspace.change(**{"models.micro.n_kv_head": 2} if "models.micro.n_head" in changes else {}, **changes)
    ends_with_2(stage, file_of(next(iter(changes))), sentence)


def test_05_outputs_are_literal_paths_inside_the_repository():
    """No parameter names an output or reaches a shell: dvc.yaml uses parameters in `params` and `deps` only."""
    for stage in STAGES.values():
        entries = [entry for kind in ("outs", "metrics", "plots") for entry in stage.get(kind, [])]
        paths = [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]
        assert "${" not in json.dumps([stage["cmd"], *paths])
        assert not [path for path in paths if path.startswith(("/", "~")) or ".." in path]


NAMES = ["..", "../out", "/tmp/out", "a/../../out", "", "$(touch pwned)"]
PATHS = ["../x.parquet", "/x.parquet", "a/../../x.parquet", "a//x.parquet"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [(HUB, "files", {name: ["x.parquet"]}) for name in NAMES]
    + [(SET, "splits", {name: "t"}) for name in NAMES]
    + [(HUB, "files", {"train": [path]}) for path in PATHS]
    + [(HUB, "repo", name) for name in ["n", "../n", "o/../n", "/o/n", "o/n; touch pwned"]]
    + [(HUB, "revision", name) for name in ["", " "]]
    + [(LOCAL, "include", pattern) for pattern in ["", "/etc/*", "../*", "a/../../*", "**x"]],
)
def test_05_a_name_that_leads_out_of_its_folder_is_refused(workspace, ends_with_2, section, key, value):
    workspace.change(**{"sources.small.fetch": {**section, key: value}})
    ends_with_2("fetch", f"sources.yaml: sources.small.fetch.{key}", ", needed: ")
    assert not (workspace.folder.parent / "out").exists()
    if key in ("repo", "revision"):
        tokenizer = {"kind": "huggingface", "repo": "o/n", "revision": "main", key: value}
        workspace.change(**{"tokenizers.bpe": tokenizer})
        ends_with_2("make_tokenizer", f"presets.yaml: tokenizers.bpe.{key} is ")


TOUCH = "touch pwned"
HOSTILE = [f"$({TOUCH}1)", f"; {TOUCH}2 #", f"`{TOUCH}3`", f"| {TOUCH}4", f"&& {TOUCH}5", "' \" \\ $HOME"]


@pytest.mark.slow
def test_05_shell_characters_are_inert_everywhere(tmp_path):
    """Run the real `dvc repro` with names, paths and values that a shell would execute; the text arrives unchanged."""
    workspace = Workspace(tmp_path / "ws")
    source, tokenizer, folder, pattern, separator, column = HOSTILE
    text = tmp_path / folder
    text.mkdir()
    workspace.commit()
    (text / "a| touch pwned4").write_text(separator.join(f"text number {i} {HOSTILE}" for i in range(60)))
    fetch_section = workspace.get("sources.local.fetch") | {"column": column, "separator": separator}
    entry = {**workspace.get("sources.local"), "fetch": fetch_section | {"include": f"*{pattern}"}}
    workspace.change(**{"data.source": source, "tokenizer.name": tokenizer, "local.path": str(text)})
    bpe = {"kind": "bpe", "vocab_size": 300, "pretokenizer": "gpt2"}
    for file, section, name, value in (
        ("sources", "sources", source, entry),
        ("presets", "tokenizers", tokenizer, bpe),
    ):
        path = workspace.folder / f"{file}.yaml"
        content = read_yaml(path)
        content[section][name] = value
        path.write_text(json.dumps(content))
    assert workspace.repro("tokenize_val") == {"fetch", "make_tokenizer", "tokenize_val"}
    sidecar = json.loads((workspace.folder / "data/processed_datasets/validation.json").read_text())
    assert sidecar["documents"] >= 1 and sidecar["source"]["name"] == source
    assert not list(tmp_path.rglob("pwned*"))
