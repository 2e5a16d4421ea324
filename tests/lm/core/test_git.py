"""Questions to Git: what does not exist is None, and a failure is not taken for it."""

import subprocess

import pytest

from lm.core.errors import EnvironmentFailure
from lm.core.git import git
from lm.core.inputs import StageInputs
from support.git import git as run_git


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a commit of one file, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known").write_text("content\n")
    for command in ("init -q", "add known", "commit -qm first"):
        run_git(*command.split())
    return tmp_path


def test_what_does_not_exist_is_none(repository, tmp_path_factory, monkeypatch):
    (repository / "new").touch()

    assert git("show", "HEAD:./known") == "content"
    assert git("show", "HEAD:./unknown") is None
    assert git("show", "HEAD:./new") is None
    assert git("remote", "get-url", "origin") is None

    monkeypatch.chdir(tmp_path_factory.mktemp("without"))
    assert git("show", "HEAD:./known") is None
    assert git("diff", "--name-only", "HEAD", "--", "known") is None


def test_the_repository_is_that_of_the_folder_also_in_a_hook_of_another(repository, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "of another")

    assert git("show", "HEAD:./known") == "content"


def test_a_folder_of_another_owner_is_an_error_with_the_command_of_git(repository, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")

    with pytest.raises(EnvironmentFailure, match="git config --global --add safe"):
        git("show", "HEAD:./known")


def test_a_stage_refuses_a_split_index_with_the_command_that_joins_it(repository):
    StageInputs("train")
    subprocess.run("git config core.splitIndex true && git update-index --split-index", shell=True, check=True)

    with pytest.raises(EnvironmentFailure, match="which DVC cannot read") as error:
        StageInputs("train")

    command = str(error.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    StageInputs("train")
