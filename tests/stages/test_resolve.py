"""The stage resolve: the definition of a source and of a mixture's parts, and the mixtures that it refuses."""

from pathlib import Path

import pytest

import resolve
from lm.core.files import read_json, write_json
from support.mixture_cases import WHOLE, mixed
from support.refusal import files_below, refused

RUN = ["--definition", "data/source.json"]
STORIES = {"kind": "stories", "seed": 1, "num_documents": 3, "num_validation_documents": 2}
SLICES = {split: {"split": split, **WHOLE} for split in ("train", "validation")}


def mixture(parts=("a", "b"), **weights) -> dict:
    return {"fetch": {"kind": "mixture", "parts": list(parts)}, **SLICES, "train": mixed(weights or {"a": 1, "b": 3})}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes the parameters with the mixture `mix`, its parts and further sources."""
    monkeypatch.chdir(tmp_path)

    def write(mix=None, source="mix", **sources):
        parts = {"a": {"fetch": STORIES, **SLICES}, "b": {"fetch": {**STORIES, "seed": 2}, **SLICES}}
        write_json("params.yaml", {"data": {"source": source}})
        write_json("presets.yaml", {"sources": {**parts, "mix": mix or mixture(), **sources}})

    return write


def test_a_plain_source_is_its_only_part(write):
    write(source="a")
    assert resolve.main(RUN) == 0
    expected = {"source": "a", "kind": "stories", "parts": {"a": {"fetch": STORIES}}}
    assert read_json("data/source.json") == expected


def test_a_mixture_has_the_definitions_and_slices_of_its_parts_in_order(write):
    write(mixture(["b", "a"]))
    assert resolve.main(RUN) == 0
    definition = read_json("data/source.json")
    assert (definition["source"], definition["kind"], list(definition["parts"])) == ("mix", "mixture", ["b", "a"])
    assert definition["parts"]["b"] == {"fetch": {**STORIES, "seed": 2}, **SLICES}


def test_weights_and_other_sources_do_not_change_the_definition(write):
    contents = set()
    for mix in (mixture(a=1, b=1), mixture(a=0.7, b=0)):
        write(mix, other={"fetch": STORIES})
        assert resolve.main(RUN) == 0
        contents.add(Path("data/source.json").read_bytes())
    assert len(contents) == 1


OVERLAP = {"fetch": STORIES, "train": {"split": "t", **WHOLE}, "validation": {"split": "t", **WHOLE}}
REFUSED = [
    (mixture([]), "sources.mix.fetch.parts is empty, needed: at least one source"),
    (mixture(["a", "a"]), "sources.mix.fetch.parts is a list with 'a' twice, needed: each once, with a weight"),
    (mixture(["a", "x"]), "sources.mix.fetch.parts names 'x', which is not a source of presets.yaml"),
    (mixture(["a", "../b"]), "sources.mix.fetch.parts is '../b' in the list, needed: letters, digits, _ and -"),
    (mixture(["a", "inner"]), "sources.mix.fetch.parts names 'inner', a mixture itself; name its parts instead"),
    (mixture(["a", "overlap"]), "sources.overlap: train and validation share characters 0 to inf of split 't'"),
    (mixture(a=-1, b=2), "sources.mix.train.weights.a is -1.0, needed: 0 or more"),
    (mixture(a=0, b=0), "sources.mix.train.weights is {'a': 0.0, 'b': 0.0}, needed: at least one above 0"),
    (mixture(a=1), "sources.mix.train.weights has no weight of the part 'b'; give it one; with 0 it stays out"),
    (mixture(a=1, b=1, c=1), "sources.mix.train.weights names 'c', which is not a part; the parts are a, b"),
    (mixture(a="much", b=1), "sources.mix.train.weights.a is 'much', not a finite number"),
    (mixture() | {"train": SLICES["train"]}, "sources.mix.train.weights is missing; give it a value"),
    (mixture() | {"fetch": {"kind": "mixture", "parts": "a"}}, "sources.mix.fetch.parts is 'a', not a list"),
]


@pytest.mark.parametrize(("mix", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_a_wrong_mixture_is_refused(write, capsys, mix, sentence):
    write(mix, inner=mixture(), overlap=OVERLAP)
    refused(resolve.main(RUN), capsys.readouterr().err, 2, f"presets.yaml: {sentence}")
    assert files_below(Path("data")) == {}


def test_a_value_that_json_cannot_hold_is_refused(write, capsys):
    write(source="a")
    Path("presets.yaml").write_text("sources:\n  a:\n    fetch: {kind: stories, seed: 2024-01-01}\n")
    refused(resolve.main(RUN), capsys.readouterr().err, 2, "presets.yaml: sources.a: a value fits into no JSON file (")
    assert files_below(Path("data")) == {}
