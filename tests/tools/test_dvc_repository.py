"""Repositories that DVC cannot use as they are: one sentence says what to do."""

import shutil
from pathlib import Path

import pytest
import yaml

from lm.core.errors import EnvironmentFailure, ParamsError
from support.git import git
from support.refusal import refused
from tools.compare import cli as compare
from tools.record.lock import md5_of, read_committed_lock, read_lock
from tools.record.revision import WORKSPACE, Revision, explain_failures, find_commit


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A repository of Git and DVC with two commits, as the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q", "-b", "main")
    Path(".dvc").mkdir()
    Path(".dvc/config").touch()
    Path("dvc.yaml").write_text("stages: {x: {cmd: x}}\n")
    for stages in ("{}", "{x: {cmd: x}}"):
        Path("dvc.lock").write_text(f"schema: '2.0'\nstages: {stages}\n")
        git("add", "-A")
        git("commit", "-qm", "state")
    return folder


def test_a_downloaded_folder_without_git_is_named(project, capsys):
    shutil.rmtree(".git")
    status = compare.main(["HEAD", "workspace"])

    refused(status, capsys.readouterr().err, 2, "this folder has no .git", "`git init && git add -A")


def test_a_user_without_a_name_is_told_to_set_one():
    named = pytest.raises(EnvironmentFailure, match="has no name, which DVC asks for; run `export USER=me`")
    with named, explain_failures():
        raise KeyError("getpwuid(): uid not found: 12345")


def test_a_shallow_clone_says_why_a_revision_is_missing(project, tmp_path, monkeypatch):
    git("clone", "-q", "--depth", "1", f"file://{project}", "shallow", folder=tmp_path)
    monkeypatch.chdir(tmp_path / "shallow")

    with pytest.raises(ParamsError, match="which `git fetch --unshallow` completes"):
        Revision("HEAD~1")


def test_a_clone_without_all_files_says_how_to_get_them(project, tmp_path, monkeypatch):
    """DVC would wait for ever for a file that is not there."""
    git("config", "uploadpack.allowFilter", "true")
    git("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{project}", "partial", folder=tmp_path)
    monkeypatch.chdir(tmp_path / "partial")
    with pytest.raises(EnvironmentFailure, match=r"HEAD: .* run `git fetch --refetch --no-filter`"):
        Revision("HEAD")

    git("fetch", "-q", "--refetch", "--no-filter")

    assert Revision("HEAD").lock.stages == {"x": {"cmd": "x"}}


def test_each_state_has_the_stages_of_its_own_dvc_yaml(project):
    """DVC leaves the stages in dvc.lock that dvc.yaml no longer has."""
    Path("dvc.yaml").write_text("stages: {}\n")

    assert list(Revision("HEAD").lock.stages) == ["x"]
    assert list(read_committed_lock().stages) == ["x"]
    assert list(Revision(WORKSPACE).lock.stages) == []
    assert list(read_lock().stages) == []


def test_a_project_in_a_subfolder_of_a_repository_has_its_files(project, monkeypatch):
    """In Git, and by DVC's file system; the folder above has files of the same names."""
    inner = project / "models" / "lm"
    for name in (".dvc/config", "code/a.py"):
        (inner / name).parent.mkdir(parents=True)
        (inner / name).touch()
    monkeypatch.chdir(inner)
    dep = {"path": "code", "hash": "md5", "md5": md5_of(Path("code"))}
    Path("dvc.yaml").write_text("stages: {y: {cmd: y}}\n")
    Path("dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"y": {"cmd": "y", "deps": [dep]}}}))
    git("add", "-A")
    git("commit", "-qm", "inner")

    committed = Revision("HEAD")

    assert list(committed.lock.stages) == ["y"]
    assert committed.read(Path("dvc.yaml")) == b"stages: {y: {cmd: y}}\n"
    assert list(committed.files_of("code")) == ["a.py"]


def test_a_name_of_an_experiment_and_of_a_revision_is_the_experiment_or_refused_with_both_hashes(project):
    first = git("rev-parse", "HEAD~1")
    head = git("rev-parse", "HEAD")
    digits = first[:7]
    git("update-ref", f"refs/exps/{first[:2]}/{first[2:]}/{digits}", head)
    git("update-ref", f"refs/exps/{first[:2]}/{first[2:]}/same", head)
    git("branch", "same")

    with pytest.raises(ParamsError, match=rf"experiment {head} and the git revision {first}; name one of them by"):
        Revision(digits)

    assert find_commit("same") == head
