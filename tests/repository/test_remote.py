"""The commands of docs/share.md on a remote in a local folder: an author pushes, a colleague pulls, no stage runs."""

import copy
import re

import pytest

from support import ROOT
from support.refusal import files_below
from support.stages import STAGES, outputs_of
from support.workspace import Workspace


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return the bytes of every file of every output in data/ by its path."""
    outputs = tuple(path for stage in STAGES for path in outputs_of(stage) if path.startswith("data/"))
    return {name: content for name, content in files_below(workspace.folder).items() if name.startswith(outputs)}


@pytest.mark.slow
def test_a_clone_gets_data_tokens_and_models_without_a_run(finished, tmp_path):
    page = (ROOT / "docs/share.md").read_text()
    section = page.split("\n## A team's cache on S3\n")[1].split("\n## ")[0]
    (add_remote,) = re.findall(r"^(dvc remote add .*) s3://", section, re.M)
    push, pull = re.findall(r"^dvc pu(?:sh|ll).*", section, re.M)
    author = Workspace(tmp_path / "author", finished)
    author.run("sh", "-euc", f"{add_remote} {tmp_path}/remote\n{push}")
    author.commit("results")
    colleague = copy.copy(author)
    colleague.folder = tmp_path / "clone"
    author.run("git", "clone", "-q", ".", str(colleague.folder))
    assert not (colleague.folder / "data" / "models").exists()

    colleague.run("sh", "-euc", pull)

    pulled = contents(colleague)
    assert pulled == contents(author)
    assert "data/processed_datasets/train.bin" in pulled
    assert colleague.repro() == set()
    assert colleague.run("git", "status", "--porcelain").stdout == ""
