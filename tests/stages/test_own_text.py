"""The user's own text with real DVC: it never enters Git, can be queued, and the commands in errors work.

`dvc exp run` commits untracked files of dependencies, and runs `--queue` and `--temp` in a copy that lacks what
Git ignores.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fetch import reject_text_git_would_take
from lm.core.errors import REPAIR, IntegrityError, ParamsError
from lm.core.files import read_json
from support.damage import remove, truncate
from support.workspace import Workspace

OWN = ("-S", "data.source=local")


@pytest.fixture
def workspace(tmp_path):
    """Create a small repository with one commit and a git identity; its pipeline is the stage fetch."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    path = tmp_path / "dvc.yaml"
    fetch = yaml.safe_load(path.read_text())["stages"]["fetch"]
    path.write_text(yaml.safe_dump({"stages": {"fetch": fetch}}))
    workspace.commit()
    return workspace


def experiment(workspace: Workspace, name: str) -> str:
    """Return the commit of an experiment, after checking that it holds none of the text."""
    pattern = f"refs/exps/*/*/{name}"
    (revision,) = workspace.run("git", "for-each-ref", "--format=%(objectname)", pattern).stdout.split()
    files = workspace.run("git", "ls-tree", "-r", "--name-only", revision).stdout.splitlines()
    assert "dvc.lock" in files
    assert not [file for file in files if "diary" in file]
    return revision


def recorded(workspace: Workspace, name: str) -> dict[str, str]:
    """Return path → hash of the dependencies and outputs of fetch, as an experiment recorded them."""
    revision = experiment(workspace, name)
    lock = yaml.safe_load(workspace.run("git", "show", f"{revision}:dvc.lock").stdout)
    fetch = lock["stages"]["fetch"]
    return {entry["path"]: entry["md5"] for entry in fetch["deps"] + fetch["outs"]}


def write_diary(folder, *texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"diary {number}.txt").write_text(text)


@pytest.mark.parametrize("name", ["texts", "tex[t]s", "my, texts"])
def test_the_remedy_for_text_that_git_would_take_makes_git_ignore_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    write_diary(Path(name), "first", "second")

    with pytest.raises(ParamsError, match="Git does not ignore it") as refused:
        reject_text_git_would_take(Path(name))

    (remedy,) = re.findall("run `(.*)`", str(refused.value))
    subprocess.run(remedy, shell=True, check=True)
    reject_text_git_would_take(Path(name))


@pytest.mark.slow
def test_text_that_git_would_take_is_refused(workspace):
    write_diary(workspace.folder / "texts", "first", "second")
    run = ("dvc", "exp", "run", *OWN, "-S", "local.path=texts", "-n", "mine")

    refused = workspace.run(*run, check=False)

    assert refused.returncode != 0
    assert "diary" not in workspace.run("git", "rev-list", "--objects", "--all").stdout
    (remedy,) = re.findall("run `(.*)`", refused.stderr)
    assert remedy == "echo /texts >> .gitignore"

    workspace.run("sh", "-c", remedy)
    workspace.run(*run)
    experiment(workspace, "mine")


@pytest.mark.slow
def test_a_link_in_place_of_the_folder_is_refused(workspace, tmp_path_factory):
    """`dvc exp run` could not apply its stash again, and the edits of the user would stay there."""
    disk = tmp_path_factory.mktemp("disk")
    write_diary(disk, "first", "second")
    folder = workspace.folder / "data/local"
    shutil.rmtree(folder)
    folder.symlink_to(disk)
    workspace.change(**{"data.source": "local"})

    refused = workspace.run("dvc", "repro", check=False)

    assert refused.returncode != 0
    assert "a link in place of a folder that Git tracks" in refused.stderr
    (remedy,) = re.findall("run `(rm .*?)`", refused.stderr)

    workspace.run("sh", "-c", remedy)
    workspace.run("dvc", "exp", "run", "-S", f"local.path={disk}", "-n", "mine")
    experiment(workspace, "mine")


@pytest.mark.slow
def test_own_text_runs_in_a_copy(workspace):
    folder = workspace.folder / "data/local"
    write_diary(folder, "first", "second")
    write_diary(folder / "deep", "third")
    workspace.run("dvc", "exp", "run", "--temp", *OWN, "-n", "before")
    write_diary(folder, "first", "changed")

    workspace.run("dvc", "exp", "run", "--temp", *OWN, "-n", "after")
    workspace.run("dvc", "exp", "run", *OWN, "-n", "here")

    before = recorded(workspace, "before")
    after = recorded(workspace, "after")
    assert after == recorded(workspace, "here")
    assert {path for path in before if before[path] != after[path]} == {"data/local", "data/raw"}

    workspace.run("dvc", "exp", "apply", "after")
    assert "up to date" in workspace.run("dvc", "status", "dvc.yaml").stdout
    workspace.run("git", "add", "-A")
    assert "diary" not in workspace.run("git", "status", "--short").stdout


@pytest.mark.slow
def test_the_remedies_for_damaged_data_work(workspace):
    manifest = workspace.folder / "data/raw/manifest.json"
    workspace.run("dvc", "repro")
    for damage in (remove, truncate):
        manifest.chmod(0o644)
        damage(manifest)
        with pytest.raises(IntegrityError, match="run `dvc repro") as refused:
            read_json(manifest)

        (remedy,) = re.findall("`(.*)`", str(refused.value))
        workspace.run("sh", "-c", remedy)

        assert read_json(manifest)["source"] == "small"

    # Of the cache.
    (remedy,) = re.findall("`(.*)`", REPAIR)
    workspace.run("sh", "-c", remedy)
