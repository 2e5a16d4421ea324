"""The package that pip installs has all that the command needs, without the rest of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT


@pytest.mark.slow
def test_the_installed_package_compares_two_tables_and_judges(tmp_path):
    # Install it alone, from a copy, because setuptools writes beside its sources.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src/evidence", source / "src/evidence", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", source)
    shutil.copy2(ROOT / "README.md", source)
    installed = tmp_path / "installed"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(installed)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def evidence(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "evidence", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    # Compare two tables of 40 documents.
    for name, loss in (("base", 100), ("wider", 99)):
        rows = [f"{name},{i},{loss + i % 7},{100 + i}" for i in range(40)]
        Path(tmp_path, f"{name}.csv").write_text("\n".join(["run,document,nats,utf8_bytes", *rows]) + "\n")
    compared = evidence("compare", "base.csv", "wider.csv")
    judged = evidence("judge", "--help")

    assert compared.returncode == 0, compared.stderr
    assert "better" in compared.stdout
    assert judged.returncode == 0, judged.stderr
