"""The user's text never enters Git, although `dvc exp run` commits untracked files of dependencies."""

import pytest

from support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path):
    """Create a small repository with one commit and a git identity."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    workspace.commit()
    for name, value in (("user.name", "t"), ("user.email", "t@localhost")):
        workspace.run("git", "config", name, value)
    return workspace


def committed_files(workspace: Workspace) -> list[str]:
    """Return the names of all files of the only experiment."""
    (revision,) = workspace.run("git", "for-each-ref", "--format=%(objectname)", "refs/exps/*/*/mine").stdout.split()
    return workspace.run("git", "ls-tree", "-r", "--name-only", revision).stdout.splitlines()


def test_text_in_data_local_stays_out_of_an_experiment(workspace):
    (workspace.folder / "data/local/diary.txt").write_text("private")
    workspace.run("dvc", "exp", "run", "-S", "train.seed=2", "-n", "mine", "fetch")
    workspace.run("git", "add", "-A")
    assert "dvc.lock" in committed_files(workspace)
    assert not [name for name in committed_files(workspace) if "diary" in name]
    assert "diary" not in workspace.run("git", "status", "--short").stdout


def test_text_elsewhere_in_the_repository_is_refused_until_git_ignores_it(workspace):
    (workspace.folder / "texts").mkdir()
    (workspace.folder / "texts/diary.txt").write_text("private")
    experiment = ("dvc", "exp", "run", "-S", "local.path=texts", "-n", "mine", "fetch")
    refused = workspace.run(*experiment, check=False)
    remedy = "echo '/texts' >> .gitignore"
    assert refused.returncode != 0 and remedy in refused.stderr
    assert "diary" not in workspace.run("git", "rev-list", "--objects", "--all").stdout
    workspace.run("sh", "-c", remedy)
    workspace.run(*experiment)
    assert not [name for name in committed_files(workspace) if "diary" in name]
