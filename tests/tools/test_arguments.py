"""Every tool refuses wrong arguments with exit code 2 and one sentence, and starts quickly."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from support import ROOT
from support.refusal import refused

PROGRAM = runpy.run_path(str(ROOT / "src" / "__main__.py"))
main = PROGRAM["main"]
WRONG = [
    ("", "no tool named; there are: use, "),
    ("compair", "unknown tool 'compair'; did you mean compare? There are: use, "),
    ("use", "recipes: has no recipes; run the command at the repository's root"),
    ("compare a workspace", "this folder is not in a DVC repository"),
    ("compare a b --confidence 1", "--confidence is 1.0; it must be from 0.6 to 0.999"),
    ("generate --seed -1", "--seed: is -1; it must be a whole number from 0 to below 2^62"),
    ("verify", "dvc.yaml: missing; run the command at the repository's root"),
    ("verify --weights early", "belong to --retrain"),
    ("verify --retrain 450 --weights .", ".: exists; name a new folder"),
    ("verify --retrain --processor", "not allowed with"),
    ("verify --record", "belong to --processor"),
    ("verify --processor --expect 01234", "--expect: is 01234; it must be 6 to 12 hex digits"),
    ("export_hf --from nowhere models", "--from: nowhere is not a folder"),
    ("generate --min_p nan", "--min_p"),
]


@pytest.mark.parametrize(("line", "sentence"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_arguments_are_refused(tmp_path, monkeypatch, capsys, line, sentence):
    monkeypatch.chdir(tmp_path)

    try:
        status = main(shlex.split(line))
    except SystemExit as error:  # argparse's own refusals
        status = error.code

    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_help_has_a_summary_of_every_tool(capsys):
    assert main(["--help"]) == 0

    out = capsys.readouterr().out
    assert re.findall(r"^(\S.*):$", out, re.M) == list(PROGRAM["TOOLS_BY_GOAL"])
    assert re.findall(r"^  (\w+) +\S+ \S+ \S+", out, re.M) == list(PROGRAM["TOOLS"])


def test_a_subfolder_of_the_repository_is_refused(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "docs")

    refused(main(["compare", "a", "b"]), capsys.readouterr().err, 2, f"docs is a subfolder; run the command in {ROOT}")


def test_neither_pythonpath_nor_a_file_in_the_root_replaces_a_module(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    (tmp_path / "random.py").write_text("raise SystemExit('not that of the standard library')")
    others = tmp_path / "others"
    (others / "lm").mkdir(parents=True)
    (others / "lm" / "__init__.py").write_text("raise SystemExit('not that of src')")
    environment = os.environ | {"PYTHONPATH": str(others)}
    command = [sys.executable, "src", "verify", "--help"]

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout


def test_tools_start_without_heavy_packages():
    code = "import sys, tools.verify.cli; print(*sys.modules); import tools.compare.cli; print(*sys.modules)"

    modules = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT / "src", text=True)

    of_verify, of_compare = (set(line.split()) for line in modules.splitlines())
    assert of_verify.isdisjoint({"torch", "transformers", "dvc"})
    assert of_compare.isdisjoint({"torch", "transformers"})
