"""What a change of a mixture reruns, with real DVC; and the whole pipeline on a mixture."""

from pathlib import Path

import pytest

from extras.report import report
from extras.trace import explain
from lm.core.files import read_json
from support.texts import write_sentences
from support.workspace import SMALL_SOURCE, Workspace
from tools.common import paths
from tools.common.figures import fault_of_details, read_losses
from tools.verify.records import Digests, check_link, links_of_workspace

DATA = {"make_tokenizer", "tokenize_train", "tokenize_val", "audit"}


def make_mixture(folder: Path) -> Workspace:
    """Make the small pipeline on a mixture of two sources of sentences and own text; nothing of it has run."""
    workspace = Workspace(folder)
    workspace.make_small()
    workspace.write_own_text(100)
    write_sentences(workspace.folder / "data/local/others.jsonl", 200, seed=9)
    fetch_others = SMALL_SOURCE["fetch"] | {"include": "others.jsonl"}
    mixture = {
        "data.source": "mixture",
        "sources.others": SMALL_SOURCE | {"fetch": fetch_others},
        "sources.mixture.fetch.sources": ["small", "others", "local"],
        "sources.mixture.train.weights": {"small": 0.5, "others": 0.2, "local": 0.3},
        "sources.mixture.prompts": [""],
    }
    workspace.change(**mixture)
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
    ("sources.tinystories.train.num_chars", 9, {"fetch"}),
    ("sources.mixture.train.weights.local", 0.1, {"fetch", *DATA}),
    ("sources.others.fetch.split.validation_fraction", 0.2, {"fetch", *DATA}),
    ("sources.small.validation.num_chars", 9000, {"fetch", *DATA}),
    ("sources.mixture.validation.num_chars", 9500, {"fetch", "tokenize_val", "audit"}),
    ("sources.others.fetch.split.validation_fraction", 0.3, {"fetch", *DATA}),
]


@pytest.mark.slow
def test_a_change_reruns_what_depends_on_it(tmp_path):
    workspace = make_mixture(tmp_path)
    assert workspace.repro("audit") == {"fetch", *DATA}

    for name, value, stages in TABLE:
        workspace.change(**{name: value})
        assert workspace.repro("audit") == stages, name

    # Going back is served from the cache.
    workspace.change(**{"sources.others.fetch.split.validation_fraction": 0.2})
    assert "Running stage" not in workspace.run("dvc", "repro", "audit").stdout

    # Other own text is fetched.
    (workspace.folder / "data" / "local" / "7.txt").write_text("another text\n" * 9)
    assert workspace.repro("audit") == {"fetch", *DATA}


def test_a_mixture_is_verified_reported_and_explained(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained.folder)
    details = read_json(paths.EVALUATION_DETAILS)
    sources = read_json(paths.VALIDATION_SIDECAR)["sources"]
    assert details["documents"] == sum(source["documents"] for source in sources.values())

    findings = [finding for link in links_of_workspace() for finding in check_link(link, Digests(), "the command")]
    assert findings
    assert not [finding for finding in findings if finding.fault]
    assert fault_of_details(read_losses(), {}) is None

    assert report.main([]) == 0

    assert explain.main(["--step", "1", "--row", "0"]) == 0
    assert "document" in capsys.readouterr().out
