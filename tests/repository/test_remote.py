"""The commands of docs/share.md on a remote in a local folder: an author pushes, colleagues pull.

The colleagues' `python` refuses to start, so no stage can make what they get.
"""

import copy
import re

import pytest

from support import ROOT
from support.refusal import files_below
from support.stages import STAGES, outputs_of
from support.workspace import Workspace

BLOCK = re.compile(r"^```bash \w+\n(.*?)^```", re.M | re.S)


def recipe(pattern: str) -> list[list[str]]:
    """Return the commands of the section about a team's cache that match, as lists of words without comments."""
    page = (ROOT / "docs" / "share.md").read_text()
    section = page.split("\n## A team's cache on S3\n")[1].split("\n## ")[0]
    found = []
    for block in BLOCK.findall(section):
        for line in block.splitlines():
            without_comment = line.partition("  #")[0]
            commands = without_comment.strip().split(" && ")
            found += [command.split() for command in commands if re.match(pattern, command)]
    return found


@pytest.fixture(scope="module")
def author(tmp_path_factory, finished):
    """Make a repository with remotes of DVC and of Git, and a commit of the results."""
    author = Workspace(tmp_path_factory.mktemp("author"), finished)

    # The remote of DVC, with the outputs of the run.
    ((*words, _url),) = recipe("dvc remote add")
    remote = str(tmp_path_factory.mktemp("remote"))
    author.run(*words, remote)
    author.run("git", "commit", "-q", "-m", "parameters", ".dvc/config")
    for command in recipe("dvc push"):
        author.run(*command)

    author.commit("results")
    origin = str(tmp_path_factory.mktemp("origin"))
    author.run("git", "clone", "-q", "--bare", ".", origin)
    author.run("git", "remote", "add", "origin", origin)
    return author


@pytest.fixture
def colleague(author, tmp_path):
    """Make a clone with an empty cache, on a machine where no stage can run."""
    origin = author.run("git", "remote", "get-url", "origin").stdout.strip()
    author.run("git", "clone", "-q", origin, str(tmp_path / "clone"))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho a stage was started >&2\nexit 97\n")
    python.chmod(0o755)
    colleague = copy.copy(author)
    colleague.folder = tmp_path / "clone"
    colleague.environment = author.environment | {"PATH": f"{python.parent}:{author.environment['PATH']}"}
    return colleague


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return the bytes of every file of every output in data/ by its path."""
    outputs = tuple(path for stage in STAGES for path in outputs_of(stage) if path.startswith("data/"))
    return {name: content for name, content in files_below(workspace.folder).items() if name.startswith(outputs)}


@pytest.mark.slow
def test_a_clone_gets_data_tokens_and_models_without_a_run(author, colleague):
    assert not (colleague.folder / "data" / "models").exists()

    for command in recipe("dvc pull"):
        colleague.run(*command)

    pulled = contents(colleague)
    assert pulled == contents(author)
    assert "data/processed_datasets/train.bin" in pulled
    assert "data/models/best_model_params.pt" in pulled
    assert colleague.repro() == set()
    assert colleague.run("git", "status", "--porcelain").stdout == ""
