"""make_tokenizer, tokenize_split and audit on a mixture: the same bytes however they work, and what they record."""

from pathlib import Path

import pytest

from extras.trace.documents import document_sources
from lm.core.files import read_json
from lm.tokens.tokenfile import open_tokens
from support.mixture_cases import WHOLE, mixed, write_mixture
from support.tokenize_cases import (
    make_project,
    run_audit,
    tokenize,
    write_params,
)
from tools.record import paths

LONG = [f"a long document, number {number}, {number * 7919} " * 5 for number in range(40)]
SHORT = [f"short {number}" for number in range(30)]
WEIGHTS = {"long": 0.6, "short": 0.4}
VALIDATION = {"split": "validation", **WHOLE}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory: data/raw of a mixture, as fetch leaves it, and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lm.text.documents.CHUNK_CHARS", 50)
    make_project()
    make_raw(WEIGHTS)


def make_raw(weights: dict[str, float]) -> None:
    """Write data/raw and the parameters of a mixture with these weights."""
    sources = {
        "long": {"train": LONG, "validation": ["x1", "x2"]},
        "short": {"train": SHORT, "validation": ["y1"]},
    }
    write_mixture(Path("raw"), sources, weights, per_file=7)
    write_params(mixed(weights), VALIDATION)


def test_the_sidecar_of_train_counts_the_sources_by_their_weights(project):
    assert tokenize("train") == 0

    sidecar = read_json("out/train.json")
    total_bytes = sum(map(len, LONG + SHORT))
    assert sidecar["slice"]["weights"] == WEIGHTS
    for name, texts in {"long": LONG, "short": SHORT}.items():
        longest = max(map(len, texts))
        assert sidecar["sources"][name]["utf8_bytes"] == pytest.approx(WEIGHTS[name] * total_bytes, abs=longest)
    assert sum(source["documents"] for source in sidecar["sources"].values()) == sidecar["documents"]


def test_tools_find_the_source_of_each_document(project, monkeypatch):
    monkeypatch.setattr(paths, "RAW", Path("raw"))
    monkeypatch.setattr(paths, "MANIFEST", Path("raw/manifest.json"))
    assert tokenize("train") == tokenize("validation") == 0

    assert document_sources(open_tokens("out/validation.bin")) == ["long", "long", "short"]


def test_the_audit_warns_of_a_missed_weight(project, capsys):
    """A document of `long` has 2.4 % of the bytes."""
    make_raw({"long": 0.01, "short": 0.99})
    assert tokenize("train") == tokenize("validation") == 0

    run_audit()

    assert "warning: long gives 0.0% of the bytes of train; its weight asks for 1.0%" in capsys.readouterr().err
