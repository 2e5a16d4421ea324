"""Code blocks of the READMEs: `run` ones are executed here, `slow` ones by make test-slow, `parse` ones parsed."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT
from workspace import Workspace

BLOCK = re.compile(r"^```(\w+)[ \t]*(\w*)\n(.*?)^```", re.M | re.S)


def blocks(tag=None):
    found = []
    for name in ("README.md", "data/README.md"):
        for number, (language, its_tag, code) in enumerate(BLOCK.findall((ROOT / name).read_text()), 1):
            if tag in (None, its_tag):
                found.append(pytest.param(language, its_tag, code, id=f"{name}-{number}"))
    return found


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("readme"))
    workspace.make_small()
    workspace.commit()
    workspace.repro()
    workspace.commit()
    return workspace


@pytest.mark.parametrize(("language", "tag", "code"), blocks())
def test_every_block_says_what_is_done_with_it_and_parses(language, tag, code):
    assert language in ("bash", "python")
    assert tag in ("run", "slow", "parse")
    if language == "python":
        compile(code, "README", "exec")
    else:
        subprocess.run(["bash", "-n"], input=code, text=True, check=True)


@pytest.mark.parametrize(("language", "tag", "code"), blocks("run"))
def test_run_blocks_run(workspace, language, tag, code):
    if language == "python":
        workspace.run(sys.executable, "-c", code, PYTHONPATH="src")
    else:
        workspace.run("bash", "-euo", "pipefail", "-c", code)


@pytest.mark.slow
@pytest.mark.parametrize(("language", "tag", "code"), blocks("slow"))
def test_slow_blocks_run_in_a_fresh_clone(tmp_path, language, tag, code):
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    subprocess.run(["bash", "-euo", "pipefail", "-c", code], cwd=tmp_path / "clone", check=True)


def test_shipped_paths_and_targets_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:src|tests|metrics|plots)/[\w/.]+\.\w+)`", text):
        if not path.startswith(("metrics", "plots")):
            assert (ROOT / path).exists(), path
