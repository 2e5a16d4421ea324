"""The results of benchmarks/: generated figures are theirs, and benchmarks/dvc.yaml names what decides each."""

import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support import ROOT
from support.imports import closure, import_graph, imported_names
from support.workspace import Workspace

BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "benchmarks" / "results"
SRC = ROOT / "src"
FOLDERS = [BENCHMARKS, BENCHMARKS / "speed", BENCHMARKS / "quality"]


def read_stages() -> dict[str, dict]:
    """Return the stages of benchmarks/dvc.yaml by name, each item of a loop as a stage of its own."""
    stages = {}
    for name, stage in yaml.safe_load((BENCHMARKS / "dvc.yaml").read_text())["stages"].items():
        if "foreach" in stage:
            for item in stage["foreach"]:
                stages[f"{name}@{item}"] = stage["do"]
        else:
            stages[name] = stage
    return stages


STAGES = read_stages()


def run_python(*arguments) -> subprocess.CompletedProcess:
    """Run Python with the modules of src/ and benchmarks/; a failure shows what it printed."""
    folders = os.pathsep.join(str(folder) for folder in [SRC, *FOLDERS])
    environment = os.environ | {"PYTHONPATH": folders}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def read_result(name: str) -> dict:
    """Read benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_generated_figures_are_those_of_the_committed_results():
    run_python(BENCHMARKS / "pages.py", "--check")


def test_pages_show_what_compare_prints_without_the_names_of_its_files(monkeypatch):
    for folder in reversed(FOLDERS):
        monkeypatch.syspath_prepend(folder)
    shortened = runpy.run_path(str(BENCHMARKS / "fragments" / "runs.py"))["shortened"]
    answer = "The model `b` is worse than the model `a`: +0.0080 bits per byte (…).\nDiffers: nothing."

    assert shortened(f"{answer}\nwritten: comparisons/a-vs-b.md, a-vs-b.csv\n") == answer


def test_every_result_has_a_stage_or_a_row_of_a_settled_question():
    outs = set()
    for name, stage in STAGES.items():
        _, _, key = name.partition("@")
        for out in stage["outs"]:
            (path,) = out
            outs.add(path.replace("${key}", key))
    log = (BENCHMARKS / "LOG.md").read_text(encoding="utf-8")

    for path in RESULTS.iterdir():
        file = path.relative_to(BENCHMARKS).as_posix()
        assert file in outs or f"`{file}`" in log, file


@pytest.fixture(scope="module")
def graph() -> dict:
    """The files of src/, and those that each imports."""
    return import_graph(SRC)


@pytest.fixture(scope="module")
def modules(graph) -> dict[str, Path]:
    """The files of src/ by the names of their modules."""
    found = {}
    for path in graph:
        name = path.relative_to(SRC).with_suffix("").as_posix()
        found[name.removesuffix("/__init__").replace("/", ".")] = path
    return found


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_told_all_code_that_its_scripts_import(graph, modules, name):
    stage = STAGES[name]
    scripts = [BENCHMARKS / script for script in re.findall(r"(?:speed|quality)/\w+\.py", stage["cmd"])]
    imported = []
    for script in scripts:
        for names in imported_names(script, BENCHMARKS):
            imported += [modules[each] for each in names if each in modules]
    deps = [(BENCHMARKS / dep).resolve() for dep in stage["deps"]]

    for file in [*scripts, *closure(graph, imported)]:
        assert any(file.is_relative_to(dep) for dep in deps), file


def test_dvc_runs_the_pipeline_at_the_top_alone_by_default(tmp_path, finished):
    workspace = Workspace(tmp_path / "workspace", finished)
    workspace.copy_stages_of_benchmarks()
    workspace.commit()

    for command in ("repro --dry", "metrics show", "params diff", "exp show --only-changed"):
        printed = workspace.run("dvc", *command.split()).stdout
        assert "benchmarks" not in printed, command

    of_benchmarks = workspace.run("dvc", "status", "benchmarks/dvc.yaml").stdout
    assert "benchmarks/dvc.yaml:time_to_loss" in of_benchmarks


def test_the_scripts_can_be_imported():
    """A script finds those of its own folder beside it."""
    scripts = [*BENCHMARKS.glob("speed/*.py"), *BENCHMARKS.glob("quality/*.py"), BENCHMARKS / "pages.py"]
    names = sorted(script.stem for script in scripts)
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"

    run_python("-c", code, *names)


@pytest.fixture(scope="module")
def gpu_record(tmp_path_factory) -> dict:
    """What the benchmark of a GPU writes on the CPU, with one small model."""
    folder = tmp_path_factory.mktemp("gpu")
    run_python(BENCHMARKS / "speed" / "gpu.py", "--quick", "--eager", "--out", folder)
    return json.loads((folder / "gpu.json").read_text())


def test_the_benchmark_of_a_gpu_writes_what_its_owner_can_send(gpu_record):
    (model,) = gpu_record["models"]

    assert gpu_record["device"] == "cpu"
    assert gpu_record["versions"].keys() == {"torch", "numpy", "transformers"}
    assert model["steps"] == 8
    assert model["tokens_per_s"] > 0
    assert 0 < model["share_of_peak"] < 1
    assert abs(model["first_loss"] - math.log(model["vocab_size"])) < 0.5


def test_peers_of_a_gpu_begin_with_the_same_weights_and_take_the_same_steps(gpu_record):
    (model,) = gpu_record["models"]
    adamw, gpt, gemma = gpu_record["peers"]

    assert (adamw["implementation"], adamw["optimizer"]) == ("ours", "adamw")
    assert (gpt["implementation"], gpt["optimizer"]) == ("nanogpt", "adamw")
    assert (gemma["implementation"], gemma["optimizer"]) == ("transformers", "muon")
    assert gemma["parameters"] == model["parameters"]
    assert abs(gemma["first_loss"] - model["first_loss"]) < 0.01
    assert abs(gemma["last_loss"] - model["last_loss"]) < 0.05
    assert gpt["last_loss"] < gpt["first_loss"]
