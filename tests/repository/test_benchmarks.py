"""The results of benchmarks/: generated figures are theirs, and benchmarks/run.py names what decides each."""

import json
import math
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

from support import ROOT
from support.imports import closure, import_graph, imported_names

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


def test_generated_figures_are_those_of_the_committed_results():
    run_python(BENCHMARKS / "pages.py", "--check")


@pytest.fixture(scope="module")
def runner() -> SimpleNamespace:
    """The module benchmarks/run.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "run.py")))


def test_every_result_has_a_program_or_a_row_of_a_settled_question(runner):
    log = (BENCHMARKS / "LOG.md").read_text(encoding="utf-8")

    for path in RESULTS.glob("*.*"):
        file = path.relative_to(BENCHMARKS).as_posix()
        assert path.stem in runner.PROGRAMS or f"`{file}`" in log, file


def test_a_program_names_all_code_that_its_scripts_import(runner):
    graph = import_graph(SRC)
    modules = {}
    for path in graph:
        name = path.relative_to(SRC).with_suffix("").as_posix()
        modules[name.removesuffix("/__init__").replace("/", ".")] = path

    for name in runner.PROGRAMS:
        paths = [ROOT / path for path in runner.paths_of(name)]
        scripts = [path for path in paths if path.parent.parent == BENCHMARKS]
        imported = []
        for script in scripts:
            for names in imported_names(script, BENCHMARKS):
                imported += [modules[each] for each in names if each in modules]

        for file in closure(graph, imported):
            assert any(file.is_relative_to(path) for path in paths), (name, file)


def test_a_result_is_stale_until_it_has_the_hashes_of_the_last_commit(runner, tmp_path, monkeypatch):
    monkeypatch.setitem(runner.is_stale.__globals__, "RESULTS", tmp_path)
    hashes = runner.hashes_of("exact")
    result = tmp_path / "exact.json"
    found = [runner.is_stale("exact")]

    for measured in (None, hashes, hashes | {"src/lm/exact": "0" * 40}):
        result.write_text(json.dumps({"measured": measured}))
        found.append(runner.is_stale("exact"))

    assert "src/lm/exact" in hashes
    assert found == [True, True, False, True]


def test_a_result_that_is_made_records_its_commit_and_is_not_stale(runner, tmp_path, monkeypatch):
    module = runner.make.__globals__
    program = runner.Result(f"echo '{{\"seconds\": 3}}' > {tmp_path}/some.json", ())
    monkeypatch.setitem(module, "RESULTS", tmp_path)
    monkeypatch.setitem(module, "PROGRAMS", {"some": program})
    monkeypatch.setitem(module, "paths_of", lambda name: ["LICENSE"])

    runner.make("some")

    found = json.loads((tmp_path / "some.json").read_text())
    assert found["seconds"] == 3
    assert runner.git("rev-parse", found["commit"]) == runner.git("rev-parse", "HEAD")
    assert not runner.is_stale("some")


def test_a_result_is_not_made_from_files_that_no_commit_has(runner, monkeypatch):
    monkeypatch.setitem(runner.make.__globals__, "git", lambda *arguments: " M src/lm/exact/order.py")

    with pytest.raises(SystemExit, match=r"exact: these files differ from the last commit(.|\n)*order\.py"):
        runner.make("exact")


def test_the_scripts_can_be_imported():
    """A script finds those of its own folder beside it."""
    scripts = [*BENCHMARKS.glob("speed/*.py"), *BENCHMARKS.glob("quality/*.py"), BENCHMARKS / "pages.py"]
    names = sorted(script.stem for script in scripts)
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"

    run_python("-c", code, *names)


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
