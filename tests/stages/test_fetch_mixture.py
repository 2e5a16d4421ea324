"""The stage fetch: the files that it writes of a mixture, and the mixtures that it refuses."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lm.core.params import read_yaml
from lm.text.documents import open_manifest
from support import ROOT
from support.mixture_cases import RAW, WHOLE, mixed
from support.refusal import files_below, refused
from support.stages import change_params, run_here, stage_folder
from support.texts import sentences, write_sentences

LOCAL = read_yaml(ROOT / "sources.yaml")["sources"]["local"]["fetch"] | {"split": None}
A = sentences(7, seed=1)
B = sentences(7, seed=2)
TRAIN_OF_A, VALIDATION_OF_A = A[:5], A[5:]
TRAIN_OF_B, VALIDATION_OF_B = B[:5], B[5:]


def whole(split: str) -> dict:
    """Return the slice that is a whole split."""
    return {"split": split, **WHOLE}


def source(name: str, texts: list[str]) -> dict:
    """Return the entry of a source of a file in data/local/, whose last two documents are for validation."""
    chars_of_train = sum(len(text) for text in texts[:5])
    return {
        "fetch": LOCAL | {"include": f"{name}.jsonl"},
        "train": {"split": "text", "start_char": 0, "num_chars": chars_of_train},
        "validation": {"split": "text", "start_char": chars_of_train, "num_chars": None},
        "prompts": [""],
    }


def mixture(sources=("a", "b"), **weights) -> dict:
    """Return the entry of a mixture, by default with three times as many bytes of `b` as of `a`."""
    return {
        "fetch": {"kind": "mixture", "sources": list(sources)},
        "train": mixed(weights or {"a": 1, "b": 3}),
        "validation": whole("validation"),
        "prompts": [""],
    }


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that selects the mixture `mix` of the sources, and adds further sources."""
    monkeypatch.chdir(stage_folder(tmp_path / "project"))
    write_sentences(Path("data/local/a.jsonl"), 7, seed=1)
    write_sentences(Path("data/local/b.jsonl"), 7, seed=2)

    def write(mix, **sources):
        entries = {"a": source("a", A), "b": source("b", B), "mix": mix}
        change_params(Path(), {"data.source": "mix", "sources": entries | sources})

    return write


def columns_of(split: str) -> dict[str, list]:
    """Return the columns of a split of raw/."""
    return pq.read_table(RAW / f"{split}.parquet").to_pydict()


def test_the_text_is_written_once_in_the_order_of_the_mixture_by_its_weights(write, capsys):
    write(mixture(["b", "a"]))

    assert run_here("fetch") == 0

    assert set(files_below(RAW)) == {"manifest.json", "train.parquet", "validation.parquet"}
    manifest = open_manifest(RAW)
    assert manifest["source"] == "mix"
    assert list(manifest["sources"]) == ["b", "a"]
    validation = columns_of("validation")
    assert validation["text"] == VALIDATION_OF_B + VALIDATION_OF_A
    assert validation["source"] == ["b", "b", "a", "a"]
    assert validation["utf8_bytes"] == [len(text.encode()) for text in validation["text"]]

    # A quarter of the bytes of training is of `a`.
    train = columns_of("train")
    assert set(TRAIN_OF_B) <= set(train["text"]) <= {*TRAIN_OF_A, *TRAIN_OF_B}
    sizes = np.array(train["utf8_bytes"])
    is_of_a = np.array(train["source"]) == "a"
    share_of_a = sizes[is_of_a].sum() / sizes.sum()
    assert share_of_a == pytest.approx(1 / 4, abs=max(map(len, A)) / sizes.sum())
    assert f"train, a: {is_of_a.sum()} documents, {share_of_a:.1%} of the bytes" in capsys.readouterr().out


OVERLAP = {
    "fetch": LOCAL,
    "train": whole("t"),
    "validation": whole("t"),
}
# A wrong mixture, and what the sentence has.
REFUSED = [
    (mixture(["a", "a"]), "mix.fetch.sources is a list with 'a' twice"),
    (mixture(["a", "x"]), "mix.fetch.sources names 'x'"),
    (mixture(["a", "../b"]), "mix.fetch.sources is '../b'"),
    (mixture(["a", "inner"]), "mix.fetch.sources names 'inner', a mixture itself"),
    (mixture(["a", "overlap"]), "overlap: train and validation share characters 0"),
    (mixture(a=-1, b=2), "mix.train.weights.a is -1.0"),
    (mixture(a=0, b=0), "at least one above 0"),
    (mixture(a=1), "mix.train.weights has no weight of the source 'b'"),
    (mixture(a=1, b=1, c=1), "mix.train.weights names 'c'"),
]


@pytest.mark.parametrize(("mix", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_wrong_mixture_is_refused(write, capsys, mix, words):
    write(mix, inner=mixture(), overlap=OVERLAP)

    status = run_here("fetch")

    refused(status, capsys.readouterr().err, 2, "sources.yaml: sources.", words)
    assert not RAW.exists()
