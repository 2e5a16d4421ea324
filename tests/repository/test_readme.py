"""Code blocks of the READMEs: `run` ones are executed here, `slow` ones by make test-slow, `parse` ones parsed."""

import json
import re
import subprocess
import sys

import pytest

from support import ROOT
from support.workspace import Workspace

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


TOLERANCE = 0.01  # bits per byte: what the README promises on another processor, where `make` writes its own metrics


def test_the_figures_of_the_default_are_those_of_the_metrics():
    text = (ROOT / "README.md").read_text()
    found, parts = (json.loads((ROOT / "metrics" / f"{name}.json").read_text()) for name in ("eval", "data"))
    said = {
        r"\*\*([\d.]+) bits per byte\*\*": found["bits_per_byte"],
        r"\| default \(`metrics/`\) \| [\d.]+ M \| ([\d.]+)": found["bits_per_byte"],
        r"\| default \(`metrics/`\) \| [\d.]+ M \| [\d.]+ \| ([\d.]+)": found["bits_per_byte_side_by_side"],
        r"the same model has ([\d.]+) bits": found["clean"]["bits_per_byte"],
        r"absolute figure is about ([\d.]+) bits": found["bits_per_byte_se"],
    }
    for pattern, value in said.items():
        (figure,) = re.findall(pattern, " ".join(text.split()))
        assert abs(float(figure) - value) <= TOLERANCE, pattern
    assert f"over the {parts['overlap']['clean_documents']} documents that share less than a fifth" in text
    assert 0.2 < parts["overlap"]["shared_token_share"] < 0.3, "about a quarter"


def test_shipped_paths_and_targets_exist():
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for path in re.findall(r"`((?:src|tests|metrics|plots)/[\w/.]+\.\w+)`", text):
        if not path.startswith(("metrics", "plots")):
            assert (ROOT / path).exists(), path
