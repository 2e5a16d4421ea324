"""`make` sets up its environment, also after it was interrupted."""

import re
import subprocess
from pathlib import Path

import pytest

from support import ROOT

# A Python that writes down its arguments; the environments that it creates hold a copy of it.
RECORDING = """#!/bin/sh
echo "$*" >> calls
[ "$1 $2" = "-m venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python || true
"""


def write_project(folder: Path) -> None:
    (folder / "requirements").mkdir()
    for name in ("requirements.txt", "requirements/bits.txt"):
        (folder / name).touch()
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())


def write_script(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("left", "is_created"),
    [(None, True), ("#!/bin/sh\nexit 1\n", True), (RECORDING, False)],
    ids=["nothing", "an environment without pip", "a whole environment"],
)
def test_an_environment_without_pip_is_cleared_and_created(tmp_path, left, is_created):
    write_project(tmp_path)
    if left:
        write_script(tmp_path / ".venv/bin/python", left)
    python = write_script(tmp_path / "python", RECORDING)
    subprocess.run(["make", ".venv/ready", f"PYTHON={python}"], cwd=tmp_path, check=True, capture_output=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ("-m venv --clear .venv" in calls) == is_created
    assert calls[-1].startswith("-m pip install ") and calls[-1].endswith(" -r requirements.txt")
    assert (tmp_path / ".venv/ready").exists()


def test_make_help_explains_every_target():
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert [line.split()[0] for line in done.stdout.splitlines()] == phony.split() and len(phony.split()) <= 14
