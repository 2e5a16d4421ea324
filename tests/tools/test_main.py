"""`python src`: its help on any terminal, and a Python without the packages or without the folder of the program."""

import os
import runpy
import subprocess
import sys

import pytest

from support import ROOT
from support.refusal import refused


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, env=os.environ | environment)


def test_help_is_printed_on_a_terminal_that_lacks_characters():
    done = python("src", "--help", PYTHONIOENCODING="latin-1")

    assert done.returncode == 0
    assert b"check_parameters" in done.stdout


def test_the_status_of_a_bug_is_no_answer(monkeypatch, capsys):
    """1 is an answer of `compare --require` and of `judge`."""
    main = runpy.run_path(str(ROOT / "src" / "__main__.py"))["main"]
    monkeypatch.setattr("tools.verify.cli.main", lambda argv: 1 / 0)

    assert main(["verify"]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(("program", "package"), [("src/train.py", "torch"), ("src", "ruamel")])
def test_a_python_without_the_packages_is_told_to_activate_the_environment(program, package):
    done = python("-S", "-E", program, "check_parameters")

    refused(done.returncode, done.stderr.decode(), 5, f"has no package {package}", "`source .venv/bin/activate`")


def test_a_stage_that_cannot_import_the_library_is_told_why():
    done = python("src", "check_parameters", PYTHONSAFEPATH="1", DVC_STAGE="fetch")

    refused(done.returncode, done.stderr.decode(), 5, "PYTHONSAFEPATH is set", "unset it")
