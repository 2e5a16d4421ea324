"""`make` sets up its environment, also after it was interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT


@pytest.mark.parametrize(
    "left",
    [pytest.param("nothing", marks=pytest.mark.slow), "an environment without pip",
     pytest.param("half a folder", marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_interrupted_environment_is_created_again(tmp_path, left):
    for name, content in (("Makefile", (ROOT / "Makefile").read_text()), ("requirements.txt", "")):
        (tmp_path / name).write_text(content)
    if left == "an environment without pip":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=tmp_path, check=True)
    elif left == "half a folder":
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
    command = ["make", ".venv/ready", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert Path(tmp_path, ".venv/ready").exists()
    subprocess.run([".venv/bin/python", "-m", "pip", "--version"], cwd=tmp_path, check=True, capture_output=True)
