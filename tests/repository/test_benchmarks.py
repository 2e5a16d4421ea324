"""The programs of benchmarks/ run, and each result names its own."""

import json
import math
import os
import subprocess
import sys

import pytest

from support import ROOT

BENCHMARKS = ROOT / "benchmarks"
FOLDERS = [BENCHMARKS, BENCHMARKS / "speed", BENCHMARKS / "quality"]


def run_python(*arguments) -> subprocess.CompletedProcess:
    """Run Python with the modules of src/ and benchmarks/; a failure shows what it printed."""
    folders = os.pathsep.join(str(folder) for folder in [ROOT / "src", *FOLDERS])
    environment = os.environ | {"PYTHONPATH": folders}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_the_scripts_can_be_imported():
    scripts = [script.stem for folder in FOLDERS for script in folder.glob("*.py")]

    run_python("-c", f"import {', '.join(scripts)}")


def test_exact_order_md_is_what_its_program_writes():
    code = "import exact_order, sys; sys.stdout.write(exact_order.page())"

    assert run_python("-c", code).stdout == (ROOT / "docs" / "exact_order.md").read_text(encoding="utf-8")


def test_every_result_is_quoted_and_names_its_commit_and_its_command():
    """Or the log does so."""
    log = (BENCHMARKS / "LOG.md").read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("recipes/*.md")]
    text = log + "".join(page.read_text(encoding="utf-8") for page in pages)

    for path in (BENCHMARKS / "results").iterdir():
        assert f"results/{path.name}" in text, path.name
        result = path.read_bytes()
        names_its_run = b'"commit": "' in result and b'"command": "' in result
        assert names_its_run or f"`results/{path.name}`" in log, path.name


@pytest.mark.slow
def test_a_gpu_is_measured_by_steps_of_the_stage_train(tmp_path):
    """Here on the CPU, with one small model."""
    run_python(BENCHMARKS / "speed" / "gpu.py", "--quick", "--eager", "--out", tmp_path)

    record = json.loads((tmp_path / "gpu.json").read_text())
    (model,) = record["models"]
    assert record["commit"]
    assert record["command"].endswith(f"gpu.py --quick --eager --out {tmp_path}")
    assert 0 < model["share_of_peak"] < 1
    assert abs(model["first_loss"] - math.log(model["vocab_size"])) < 0.5
    assert model["last_loss"] != model["first_loss"]
    assert model["agrees_with_cpu"] is True
    assert record["prove"].startswith("same bits as committed")
