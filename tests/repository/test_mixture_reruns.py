"""What a change of a mixture reruns, with real DVC; and the whole pipeline on a mixture."""

import json
from pathlib import Path

import pytest

from extras.report import report
from extras.trace import explain
from support.texts import write_sentences
from support.workspace import SMALL_SOURCE, Workspace
from tools.verify import cli as verify

DATA = {"make_tokenizer", "tokenize_train", "tokenize_val", "audit"}


def make_mixture(folder: Path) -> Workspace:
    """Make the small pipeline on a mixture of two sources of sentences and own text; nothing of it has run."""
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.write_own_text(100)
    others = {**SMALL_SOURCE, "fetch": {**SMALL_SOURCE["fetch"], "include": "others.jsonl"}}
    write_sentences(workspace.folder / "data/local/others.jsonl", 200, seed=9)
    mixture = {
        "fetch.sources": ["small", "others", "local"],
        "train.weights": {"small": 0.5, "others": 0.2, "local": 0.3},
        "prompts": [""],
    }
    workspace.change(**{
        "data.source": "mixture",
        "sources.others": others,
        **{f"sources.mixture.{name}": value for name, value in mixture.items()},
    })  # fmt: skip
    workspace.commit()
    return workspace


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The mixture after all stages, without DVC."""
    workspace = make_mixture(tmp_path_factory.mktemp("trained"))
    workspace.run_stages()
    return workspace


# In this order, each upon the one before it: what is changed, which stages run.
TABLE = [
    ({"sources.tinystories.train.num_chars": 9}, {"fetch"}),
    ({"sources.mixture.train.weights.local": 0.1}, {"fetch", *DATA}),
    ({"sources.others.fetch.split.validation_fraction": 0.2}, {"fetch", *DATA}),
    ({"sources.small.validation.num_chars": 9000}, {"fetch", *DATA}),
    ({"sources.mixture.validation.num_chars": 9500}, {"fetch", "tokenize_val", "audit"}),
    ({"sources.others.fetch.split.validation_fraction": 0.3}, {"fetch", *DATA}),
]


@pytest.mark.slow
def test_a_change_reruns_what_depends_on_it(tmp_path):
    workspace = make_mixture(tmp_path)
    assert workspace.repro("audit") == {"fetch", *DATA}
    for values, stages in TABLE:
        workspace.change(**values)
        assert workspace.repro("audit") == stages, values
    workspace.change(**{"sources.others.fetch.split.validation_fraction": 0.2})
    assert "Running stage" not in workspace.run("dvc", "repro", "audit").stdout, "served from the cache"
    (workspace.folder / "data" / "local" / "7.txt").write_text("another text\n" * 9)
    assert workspace.repro("audit") == {"fetch", *DATA}


def test_a_mixture_is_trained_evaluated_verified_and_reported(trained, monkeypatch, capsys):
    details = json.loads((trained.folder / "data/evaluation/details.json").read_text())
    sidecar = json.loads((trained.folder / "data/processed_datasets/validation.json").read_text())
    assert details["documents"] == sum(source["documents"] for source in sidecar["sources"].values())
    monkeypatch.chdir(trained.folder)
    assert verify.main([]) == 0 and "all ok" in capsys.readouterr().out
    assert report.main([]) == 0
    assert explain.main(["--step", "1", "--row", "0"]) == 0 and "document" in capsys.readouterr().out
