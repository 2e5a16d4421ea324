"""The results of benchmarks/: generated figures are theirs, and benchmarks/dvc.yaml names what decides each."""

import json
import math
import os
import re
import runpy
import subprocess
import sys

import yaml

from lm.plots import to_png
from support import ROOT
from support.imports import closure, import_graph, imported_names
from support.workspace import Workspace

BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "benchmarks" / "results"
SRC = ROOT / "src"
STAGES = yaml.safe_load((BENCHMARKS / "dvc.yaml").read_text())["stages"]
for group in ("run", "experiment"):
    STAGES |= {f"{group}@{name}": STAGES[group]["do"] for name in STAGES[group]["foreach"]}
    del STAGES[group]
SCRIPTS = sorted([*BENCHMARKS.glob("speed/*.py"), *BENCHMARKS.glob("quality/*.py"), BENCHMARKS / "pages.py"])
PYTHONPATH = os.pathsep.join(str(path) for path in (SRC, BENCHMARKS, BENCHMARKS / "speed", BENCHMARKS / "quality"))


def test_generated_figures_are_those_of_the_committed_results():
    command = [sys.executable, BENCHMARKS / "pages.py", "--check"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_show_what_compare_prints_now_and_what_it_printed_when_the_records_were_made(monkeypatch):
    for folder in (BENCHMARKS / "speed", BENCHMARKS / "quality", BENCHMARKS):
        monkeypatch.syspath_prepend(folder)
    shortened = runpy.run_path(str(BENCHMARKS / "fragments" / "runs.py"))["shortened"]
    former = json.loads((RESULTS / "first_experiment.json").read_text())["printed"]["python src compare main workspace"]
    now = "The model `b` is worse than the model `a`: +0.0080 bits per byte (…).\nDiffers: nothing.\n"

    assert shortened(f"{now}written: comparisons/a-vs-b.md, a-vs-b.csv\n") == now.strip()
    assert shortened(former).startswith("## workspace − main: ")


def test_the_picture_of_the_migration_is_of_its_record_with_one_colour_per_processor(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = runpy.run_path(str(BENCHMARKS / "quality" / "migration.py"))
    record = json.loads((RESULTS / "migration.json").read_text())

    figure = script["picture"](record)

    parts, undisturbed = figure.axes
    colors = [line.get_color() for line in parts.lines if len(line.get_xdata()) > 2]
    processors = [part["name"].split(", ")[0] for part in record["parts"]]
    assert len(colors) == len(processors)
    assert len(set(zip(processors, colors, strict=True))) == len(set(processors)) == len(set(colors))
    (curve,) = undisturbed.lines
    assert list(curve.get_ydata()) == record["training_loss"]
    assert to_png(figure) == (RESULTS / "migration.png").read_bytes()


def test_every_result_has_a_stage_or_a_row_of_a_settled_question():
    outs = {
        next(iter(out)).replace("${key}", name.partition("@")[2])
        for name, stage in STAGES.items()
        for out in stage["outs"]
    }
    log = (BENCHMARKS / "LOG.md").read_text(encoding="utf-8")
    files = [path.relative_to(BENCHMARKS).as_posix() for path in RESULTS.iterdir()]
    assert [file for file in files if file not in outs and f"`{file}`" not in log] == []


def test_stages_are_told_all_code_that_their_scripts_import():
    graph = import_graph(SRC)
    names = {path: path.relative_to(SRC).with_suffix("").as_posix() for path in graph}
    modules = {name.removesuffix("/__init__").replace("/", "."): path for path, name in names.items()}
    for name, stage in STAGES.items():
        scripts = [BENCHMARKS / script for script in re.findall(r"(?:speed|quality)/\w+\.py", stage["cmd"])]
        imported = [each for script in scripts for found in imported_names(script, BENCHMARKS) for each in found]
        reached = closure(graph, [modules[each] for each in imported if each in modules])
        deps = [(BENCHMARKS / dep).resolve() for dep in stage["deps"]]
        missing = [file for file in [*scripts, *reached] if not any(file.is_relative_to(dep) for dep in deps)]
        assert missing == [], name


def test_dvc_runs_the_pipeline_at_the_top_alone_by_default(tmp_path, finished):
    workspace = Workspace(tmp_path / "workspace", finished)
    for command in (("repro", "--dry"), ("metrics", "show"), ("params", "diff"), ("exp", "show", "--only-changed")):
        assert "benchmarks" not in workspace.run("dvc", *command).stdout, command
    assert "benchmarks/dvc.yaml:time_to_loss" in workspace.run("dvc", "status", "benchmarks/dvc.yaml").stdout


def test_the_scripts_can_be_imported():
    """A script finds those of its own folder beside it."""
    code = "import importlib, sys\nfor path in sys.argv[1:]: importlib.import_module(path)"
    command = [sys.executable, "-c", code, *(script.stem for script in SCRIPTS)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": PYTHONPATH}, check=True)


def test_the_benchmark_of_a_gpu_writes_what_its_owner_can_send(tmp_path):
    """On the CPU, with one small model."""
    command = [sys.executable, BENCHMARKS / "speed" / "gpu.py", "--quick", "--eager", "--out", tmp_path]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": PYTHONPATH}, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["device"] == "cpu" and found["versions"].keys() == {"torch", "numpy", "transformers"}
    (model,) = found["models"]
    assert model["steps"] == 8 and model["tokens_per_s"] > 0 and 0 < model["share_of_peak"] < 1
    assert abs(model["first_loss"] - math.log(model["vocab_size"])) < 0.5
    # transformers' model begins with the same weights, and takes the same steps.
    adamw, gpt, gemma = found["peers"]
    assert [peer["implementation"] for peer in found["peers"]] == ["ours", "nanogpt", "transformers"]
    assert (adamw["optimizer"], gpt["optimizer"], gemma["optimizer"]) == ("adamw", "adamw", "muon")
    assert gemma["parameters"] == model["parameters"]
    assert abs(gemma["first_loss"] - model["first_loss"]) < 0.01
    assert abs(gemma["last_loss"] - model["last_loss"]) < 0.05
    assert gpt["last_loss"] < gpt["first_loss"]
