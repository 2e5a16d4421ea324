"""The programs of benchmarks/ run, and each result has one, or a row of a settled question."""

import json
import math
import os
import pkgutil
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

from support import ROOT

BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "benchmarks" / "results"
SRC = ROOT / "src"
FOLDERS = [BENCHMARKS, BENCHMARKS / "speed", BENCHMARKS / "quality"]


def run_python(*arguments) -> subprocess.CompletedProcess:
    """Run Python with the modules of src/ and benchmarks/; a failure shows what it printed."""
    folders = os.pathsep.join(str(folder) for folder in [SRC, *FOLDERS])
    environment = os.environ | {"PYTHONPATH": folders}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def runner() -> SimpleNamespace:
    """The module benchmarks/run.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "run.py")))


def test_exact_order_md_is_what_its_program_writes():
    code = "import exact_order, sys; sys.stdout.write(exact_order.page())"

    assert run_python("-c", code).stdout == (ROOT / "docs" / "exact_order.md").read_text(encoding="utf-8")


def test_the_first_hour_has_the_commands_of_readme_from_the_environment_to_the_way_back():
    code = "import page; print(*(command[-1] for command in page.commands_of_first_hour()), sep='\\n')"

    first, *between, last = run_python("-c", code).stdout.splitlines()
    assert first == "python3 -m venv .venv"
    assert "make" in between
    assert last == "make back"


def test_every_result_has_a_program_or_a_row_of_a_settled_question(runner):
    log = (BENCHMARKS / "LOG.md").read_text(encoding="utf-8")

    for path in RESULTS.glob("*.*"):
        file = path.relative_to(BENCHMARKS).as_posix()
        assert path.stem in runner.PROGRAMS or f"`{file}`" in log, file


def test_the_peers_on_a_gpu_begin_with_the_same_weights_and_take_the_same_steps(tmp_path):
    """Here on the CPU, with one small model."""
    run_python(BENCHMARKS / "speed" / "gpu.py", "--quick", "--eager", "--out", tmp_path)

    record = json.loads((tmp_path / "gpu.json").read_text())
    (model,) = record["models"]
    assert 0 < model["share_of_peak"] < 1
    assert abs(model["first_loss"] - math.log(model["vocab_size"])) < 0.5
    _, gpt, gemma = record["peers"]
    assert gemma["parameters"] == model["parameters"]
    assert abs(gemma["first_loss"] - model["first_loss"]) < 0.01
    assert abs(gemma["last_loss"] - model["last_loss"]) < 0.05
    assert gpt["last_loss"] < gpt["first_loss"]
    assert model["agrees_with_cpu"] is True
    assert record["prove"].startswith("same bits as committed")
    assert [each["without"] for each in record["variants"]] == [option for option, _ in gpu_module().VARIANTS]


def gpu_module() -> SimpleNamespace:
    """The module benchmarks/speed/gpu.py."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in FOLDERS:
            patch.syspath_prepend(folder)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "speed" / "gpu.py")))


@pytest.mark.parametrize(
    ("loss", "norm", "agrees"), [(0, 1, True), (0.009, 0.981, True), (-0.011, 1, False), (0, 1.021, False)]
)
def test_a_first_step_agrees_with_a_cpu_within_the_rounding_of_bfloat16(loss, norm, agrees):
    gpu = gpu_module()
    expected = json.loads((RESULTS / "first_steps.json").read_text())["steps"]["tiny"]
    measured = {"first_loss": expected["loss"] + loss, "first_norm": expected["norm"] * norm}

    assert gpu.agrees_with_cpu(gpu.CASES[0], measured) is agrees


def test_each_variant_is_measured_without_an_option_that_its_model_has(tmp_path, monkeypatch):
    gpu = gpu_module()
    options = [option for option, _ in gpu.VARIANTS]
    found = []

    def measure(*arguments) -> dict:
        found.append([bool(pkgutil.resolve_name(option)) for option in options])
        return {"first_loss": 0.0, "first_norm": 1.0}

    monkeypatch.setitem(gpu.main.__globals__, "measure", measure)
    monkeypatch.setitem(gpu.main.__globals__, "prove", lambda: "")
    monkeypatch.setattr("sys.argv", ["gpu.py", "--quick", "--out", str(tmp_path)])

    gpu.main()

    assert all(all(has_options) for has_options in found[:-2])
    assert found[-2:] == [[False, True], [True, False]]
    assert all(case in gpu.CASES + gpu.PEERS for _, case in gpu.VARIANTS)
