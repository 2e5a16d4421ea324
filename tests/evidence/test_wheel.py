"""The package that pip installs has all that the command needs, without the rest of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT

AUTHOR = ["-c", "user.name=t", "-c", "user.email=t@localhost"]


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

    folder = tmp_path / "work"
    folder.mkdir()

    def evidence(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "evidence", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    # Compare two tables of 40 documents.
    for name, loss in (("base", 100), ("wider", 99)):
        rows = [f"{name},{i},{loss + i % 7},{100 + i}" for i in range(40)]
        Path(folder, f"{name}.csv").write_text("\n".join(["run,document,nats,utf8_bytes", *rows]) + "\n")
    compared = evidence("compare", "base.csv", "wider.csv")

    # Judge a change of one line.
    trainer = folder / "train.sh"
    for gain in (0, 1):
        line = f"print(i, 100 + i % 7 + int(os.environ['SEED']) ** 2 - {gain}, 100, sep=',')"
        code = f"import os\nprint('document,nats,utf8_bytes')\nfor i in range(9): {line}"
        trainer.write_text(f'#!/bin/sh\n"{sys.executable}" -c "{code}" > "$LOSSES"\n')
        trainer.chmod(0o755)
        for words in (["init", "-q"], ["add", "train.sh"], [*AUTHOR, "commit", "-qm", f"Gain {gain}"]):
            subprocess.run(["git", *words], cwd=folder, check=True)
    judged = evidence("judge", "HEAD~1", "--run", "./train.sh", "--seeds", "2")

    assert compared.returncode == 0, compared.stderr
    assert "better" in compared.stdout
    assert judged.returncode == 3, judged.stderr  # two seeds with one difference decide nothing
    assert "is 0.0144 bits per byte better than" in judged.stdout
