"""The stage resolve: the definition of a source and of a mixture's sources, and the mixtures that it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import resolve
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from support import ROOT
from support.mixture_cases import WHOLE, mixed
from support.refusal import files_below, refused
from support.stages import change_params

RUN = ["--definition", "data/source.json"]
STORIES = {"kind": "stories", "seed": 1, "num_documents": 3, "num_validation_documents": 2}
SLICES = {split: {"split": split, **WHOLE} for split in ("train", "validation")}


def mixture(sources=("a", "b"), **weights) -> dict:
    train = mixed(weights or {"a": 1, "b": 3})
    return {"fetch": {"kind": "mixture", "sources": list(sources)}, **SLICES, "train": train, "prompts": [""]}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes the shipped parameters with the mixture `mix`, its sources and further sources."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "runtime.yaml", "runtime.yaml")
    params, presets = (read_yaml(ROOT / name) for name in ("params.yaml", "presets.yaml"))

    def write(mix=None, source="mix", **sources):
        a, b = ({"fetch": {**STORIES, "seed": seed}, **SLICES, "prompts": [""]} for seed in (1, 2))
        write_json("params.yaml", params | {"data": {"source": source}})
        write_json("presets.yaml", presets | {"sources": {"a": a, "b": b, "mix": mix or mixture(), **sources}})

    return write


def test_a_plain_source_is_its_only_source(write):
    write(source="a")
    assert resolve.main(RUN) == 0
    expected = {"source": "a", "kind": "stories", "sources": {"a": {"fetch": STORIES}}}
    assert read_json("data/source.json") == expected


def test_torch_is_not_imported(write):
    write(source="a")
    code = f"import sys, resolve; sys.exit(resolve.main({RUN}) or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)


def test_a_mixture_has_the_definitions_of_its_sources(write):
    for weights in ({"a": 1, "b": 1}, {"a": 0.7, "b": 0}):
        write(mixture(["b", "a"], **weights), other={"fetch": STORIES})
        assert resolve.main(RUN) == 0
        definition = read_json("data/source.json")
        assert (definition["source"], definition["kind"], list(definition["sources"])) == ("mix", "mixture", ["b", "a"])
        assert definition["sources"]["b"] == {"fetch": {**STORIES, "seed": 2}, **SLICES}


WRONG = {
    "params.yaml": {
        "train.seq_len": ("banana", "is 'banana', not an integer"),
        "eval.temperature": (-1, "is -1.0, needed: 0 or more"),
        "model.name": ("tini", None),
    },
    "presets.yaml": {
        "sources.a.train.start_char": (-1, "is -1, needed: at least 0"),
        "sources.a.prompts": ("", "is '', not a list"),
        "selections.none.min_chars": (0, "is 0, needed: at least 1, or null for off"),
        "tokenizers.bpe.kind": ("word", "is 'word'; it must be one of bpe, tiktoken, huggingface"),
    },
    "runtime.yaml": {"train.timeout_s": (0, "is 0.0, needed: above 0"), "tokenize.chunk_chars": ("1", "is '1', not")},
}


def test_all_wrong_parameters_are_named_at_once(write, capsys):
    write(source="a")
    for file, changes in WRONG.items():
        change_params(Path(), {name: value for name, (value, _) in changes.items()}, file)
    assert resolve.main(RUN) == 2
    said = capsys.readouterr().err
    expected = [
        f"error: {file}: {name} {end}" for file, each in WRONG.items() for name, (_, end) in each.items() if end
    ]
    expected.append("error: presets.yaml: models.tini is missing; there are: tiny, small")
    assert [sentence for sentence in expected if sentence not in said] == []
    assert len(said.splitlines()) == len(expected) and not Path("data/source.json").exists()


@pytest.mark.parametrize(("source", "named"), [("", "sources.''"), ("x", "sources.x")])
def test_a_source_that_does_not_exist_is_named_once(write, capsys, source, named):
    write(source=source)
    assert resolve.main(RUN) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: presets.yaml: {named} is missing; there are: a, b")


OVERLAP = {"fetch": STORIES, "train": {"split": "t", **WHOLE}, "validation": {"split": "t", **WHOLE}}
REFUSED = [
    (mixture([]), "sources.mix.fetch.sources is empty, needed: at least one source"),
    (mixture(["a", "a"]), "sources.mix.fetch.sources is a list with 'a' twice, needed: each once, with a weight"),
    (mixture(["a", "x"]), "sources.mix.fetch.sources names 'x', which is not a source of presets.yaml"),
    (mixture(["a", "../b"]), "sources.mix.fetch.sources is '../b' in the list, needed: letters, digits, _ and -"),
    (mixture(["a", "inner"]), "sources.mix.fetch.sources names 'inner', a mixture itself; name its sources instead"),
    (mixture(["a", "overlap"]), "sources.overlap: train and validation share characters 0 to inf of split 't'"),
    (mixture(a=-1, b=2), "sources.mix.train.weights.a is -1.0, needed: at least 0"),
    (mixture(a=0, b=0), "sources.mix.train.weights is {'a': 0.0, 'b': 0.0}, needed: at least one above 0"),
    (mixture(a=1), "sources.mix.train.weights has no weight of the source 'b'; give it one; with 0 it stays out"),
    (mixture(a=1, b=1, c=1), "sources.mix.train.weights names 'c', which is not a source; the sources are a, b"),
    (mixture(a="much", b=1), "sources.mix.train.weights.a is 'much', not a finite number"),
    (mixture() | {"train": SLICES["train"]}, "sources.mix.train.weights is missing; give it a value"),
    (mixture() | {"fetch": {"kind": "mixture", "sources": "a"}}, "sources.mix.fetch.sources is 'a', not a list"),
]


@pytest.mark.parametrize(("mix", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_wrong_mixture_is_refused(write, capsys, mix, sentence):
    write(mix, inner=mixture(), overlap=OVERLAP)
    refused(resolve.main(RUN), capsys.readouterr().err, 2, f"presets.yaml: {sentence}")
    assert files_below(Path("data")) == {}
