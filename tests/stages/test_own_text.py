"""The user's own text with real DVC: it never enters Git, can be queued, and every command in an error works.

`dvc exp run` commits untracked files of dependencies, and runs `--queue` and `--temp` in a copy that lacks what
Git ignores.
"""

import ast
import re
import shutil

import pytest
import yaml

from lm.core.errors import REPAIR
from lm.core.files import read_json
from support import ROOT
from support.workspace import Workspace

OWN = ("-S", "data.source=local")
TESTED = {
    "dvc repro", "dvc repro -f", "python src verify --cache", "rm -rf .venv && make",
    "echo {pattern} >> .gitignore",
    "make back",  # tests/repository/test_make.py
    "rm {path} && git restore {path}",
    "git fetch --refetch --no-filter",  # tests/tools/test_revisions.py
    "git fsck",
    "git fetch --unshallow",  # tests/lm/core/test_errors.py
    "dmesg", "ls -l", "ulimit -f", "ulimit -n",  # of the system: they show what is wrong
}  # fmt: skip


@pytest.fixture
def workspace(tmp_path):
    """Create a small repository with one commit and a git identity; its pipeline is the stage fetch."""
    workspace = Workspace(tmp_path)
    workspace.make_small()
    pipeline = yaml.safe_load((tmp_path / "dvc.yaml").read_text())
    stages = {name: pipeline["stages"][name] for name in ("fetch",)}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    workspace.commit()
    return workspace


def experiment(workspace: Workspace, name: str) -> str:
    """Return the commit of an experiment, after checking that it holds none of the text."""
    pattern = f"refs/exps/*/*/{name}"
    (revision,) = workspace.run("git", "for-each-ref", "--format=%(objectname)", pattern).stdout.split()
    names = workspace.run("git", "ls-tree", "-r", "--name-only", revision).stdout.splitlines()
    assert "dvc.lock" in names and not [name for name in names if "diary" in name]
    return revision


def recorded(workspace: Workspace, name: str) -> dict[str, str]:
    """Return path → hash of the dependencies and outputs of fetch, as an experiment recorded them."""
    lock = yaml.safe_load(workspace.run("git", "show", f"{experiment(workspace, name)}:dvc.lock").stdout)
    entries = lock["stages"]["fetch"]
    return {entry["path"]: entry["md5"] for entry in entries["deps"] + entries["outs"]}


def write_diary(folder, *texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"diary {number}.txt").write_text(text)


@pytest.mark.parametrize(
    "name", ["tex[t]s", *(pytest.param(name, marks=pytest.mark.slow) for name in ("texts", "my, texts"))]
)
def test_text_that_git_would_take_is_refused(workspace, name):
    write_diary(workspace.folder / name, "first", "second")
    run = ("dvc", "exp", "run", *OWN, "-S", f"local.path='{name}'", "-n", "mine")
    refused = workspace.run(*run, check=False)
    assert refused.returncode != 0 and "diary" not in workspace.run("git", "rev-list", "--objects", "--all").stdout
    (remedy,) = re.findall("run `(.*)`", refused.stderr)
    assert name != "texts" or remedy == "echo /texts >> .gitignore"
    workspace.run("sh", "-c", remedy)
    workspace.run(*run)
    experiment(workspace, "mine")


def test_a_link_in_place_of_the_folder_is_refused(workspace, tmp_path_factory):
    """`dvc exp run` could not apply its stash again, and the edits of the user would stay there."""
    disk = tmp_path_factory.mktemp("disk")
    write_diary(disk, "first", "second")
    folder = workspace.folder / "data/local"
    shutil.rmtree(folder)
    folder.symlink_to(disk)
    workspace.change(**{"data.source": "local"})

    refused = workspace.run("dvc", "repro", check=False)

    assert refused.returncode and "a link in place of a folder that Git tracks" in refused.stderr
    (remedy,) = re.findall("run `(rm .*?)`", refused.stderr)
    workspace.run("sh", "-c", remedy)
    workspace.run("dvc", "exp", "run", "-S", f"local.path={disk}", "-n", "mine")
    experiment(workspace, "mine")


def test_own_text_runs_in_a_copy(workspace):
    folder = workspace.folder / "data/local"
    write_diary(folder, "first", "second")
    write_diary(folder / "deep", "third")
    workspace.run("dvc", "exp", "run", "--temp", *OWN, "-n", "before")
    write_diary(folder, "first", "changed")
    workspace.run("dvc", "exp", "run", "--temp", *OWN, "-n", "after")
    workspace.run("dvc", "exp", "run", *OWN, "-n", "here")
    before, after, here = (recorded(workspace, name) for name in ("before", "after", "here"))
    assert after == here
    assert {path for path in before if before[path] != after[path]} == {"data/local", "data/raw"}
    workspace.run("dvc", "exp", "apply", "after")
    assert "up to date" in workspace.run("dvc", "status", "dvc.yaml").stdout
    workspace.run("git", "add", "-A")
    assert "diary" not in workspace.run("git", "status", "--short").stdout


@pytest.mark.slow
def test_a_separator_can_be_set_for_one_experiment(workspace):
    write_diary(workspace.folder / "data/local", "one\n\n\ntwo\n\n\nthree")
    command = re.search("dvc exp run .*separator=.*", (ROOT / "docs/data.md").read_text())[0]
    assert "train: 2 documents" in workspace.run("sh", "-c", command).stdout


def test_the_remedies_for_data_raw_work(workspace):
    manifest = workspace.folder / "data/raw/manifest.json"
    workspace.run("dvc", "repro")
    for content in (None, "{"):
        manifest.unlink()
        if content:
            manifest.write_text(content)
        with pytest.raises(Exception, match="run `dvc repro") as refused:
            read_json(manifest)
        (remedy,) = re.findall("`(.*)`", str(refused.value))
        workspace.run("sh", "-c", remedy)
        assert read_json(manifest)["source"] == "small"
    (remedy,) = re.findall("`(.*)`", REPAIR)
    workspace.run("sh", "-c", remedy)


def test_make_has_the_targets_that_errors_name(workspace):
    remedy = "rm -rf .venv && make"
    assert remedy in TESTED
    workspace.run("sh", "-c", remedy, MAKEFLAGS="-n")  # print the commands only


def test_every_command_in_an_error_is_tested_here():
    files = [ROOT / "src/fetch.py", ROOT / "src/audit.py"]
    files += [file for room in ("core", "text") for file in (ROOT / "src/lm" / room).rglob("*.py")]
    assert set().union(*(quoted_commands(ast.parse(file.read_text())) for file in files)) == TESTED


def quoted_commands(tree: ast.AST) -> set[str]:
    """Return the commands in back quotes in the strings of a module that are not its documentation."""
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in node.values)
            texts.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            texts.append(node.value)
    return {command for text in texts for command in re.findall("`([^`]*)`", text)}
