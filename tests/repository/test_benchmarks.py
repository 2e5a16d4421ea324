"""The results of benchmarks/: pages quote them truly, and benchmarks/dvc.yaml names what decides each."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from support import ROOT
from support.imports import closure, import_graph, imported_names
from support.workspace import Workspace

BENCHMARKS, RESULTS, SRC = ROOT / "benchmarks", ROOT / "benchmarks" / "results", ROOT / "src"
STAGES = yaml.safe_load((BENCHMARKS / "dvc.yaml").read_text())["stages"]
for group in ("run", "experiment"):
    STAGES |= {f"{group}@{name}": STAGES[group]["do"] for name in STAGES[group]["foreach"]}
    del STAGES[group]
SCRIPTS = sorted([*BENCHMARKS.glob("speed/*.py"), *BENCHMARKS.glob("quality/*.py"), BENCHMARKS / "pages.py"])
PYTHONPATH = os.pathsep.join(str(path) for path in (SRC, BENCHMARKS, BENCHMARKS / "speed", BENCHMARKS / "quality"))


def read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


# What pages say in words. A field such as {large_audit[measured][cpu_seconds]:.1f/min} is a number of a result, divided
# by a unit.

UNITS = {"": 1, "%": 0.01, "ms": 1e-3, "min": 60, "MB": 1e6, "GB": 1e9}
COVERAGE = "interval_coverage[coverage][one model, committed losses][96]"
QUOTES = {
    "docs/reproducibility.md": [
        "{torture/crash_states[states]:,} states of the disk",
        "{torture/failing_calls[faults]:,} faults | {torture/failing_calls[unnoticed]} stages gave the right bytes",
        "{torture/failing_calls[refused]:,} ended with an error message",
        "{tolerance[spread_nats_per_token][bfloat16]:.4f} nats per token in bfloat16",
    ],
    "docs/data.md": [
        "| 1 % of the words changed | "
        "{near_duplicates[planted][stories][1 % of the words changed][recall][0.85]:.0f/%} % | "
        "{near_duplicates[planted][C files][1 % of the words changed][recall][0.85]:.0f/%} % |",
    ],
    "docs/distributed.md": [
        "a batch takes {large_corpus[batches][1 TB][batch_ms][median]:.1f} ms",
        "it would take {large_corpus[batches][1 TB][batch_with_read_ahead_ms][median]:.0f} ms",
        "{large_corpus[rates][tokenize]:.0f/MB} MB of text tokenized per second",
        "took {ddp_overlap[times_longer_than_ours][during the backward pass][median]:.2f} (",
    ],
    "docs/export.md": ["{generate[times_longer_than_ours][not][median]:.1f} times faster"],
    "docs/metrics.md": [
        f"only {{{COVERAGE}[coverage]:.1f/%}} % for 96 documents",
        f"where p was at most 0.05 in {{{COVERAGE}[p <= 0.05]:.1f/%}} %",
    ],
    "docs/benchmarks.md": [
        "A process needs {tokenizing[memory_of_ours][0][peak_mb_of_a_process]} to "
        "{tokenizing[memory_of_ours][1][peak_mb_of_a_process]} MB",
        "within {train_step[questions][memory][runs][0][peak_rss_gib]:.1f} GiB; with",
        "within {train_step[questions][memory][runs][1][peak_rss_gib]:.1f} GiB, in",
        "a step took {busy_cores[busy_processes][0][free cores][median_s]:.0f/ms} ms on two idle cores",
        "it took {busy_cores[busy_processes][1][free cores][median_s]:.0f/ms} ms with free cores only",
        "{busy_cores[busy_processes][1][all cores][median_s]:.0f/ms} ms with a thread on every core",
    ],
}


class Number(float):
    def __format__(self, spec):
        digits, _, unit = spec.partition("/")
        value = float(self) / UNITS[unit]
        return format(int(value) if value.is_integer() and not digits.endswith("f") else value, digits)


class Section(dict):
    def __missing__(self, key):
        return self[str(key)]  # the fields of str.format turn digits into int


class Results(dict):
    def __missing__(self, name):
        text = (RESULTS / f"{name}.json").read_text()
        return json.loads(text, parse_int=Number, parse_float=Number, object_hook=Section)


@pytest.mark.parametrize("page", QUOTES)
def test_pages_say_what_the_results_say(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [words for words in (each.format_map(Results()) for each in QUOTES[page]) if words not in text] == []


def test_readme_says_what_make_reproduce_found():
    outputs = json.loads((ROOT / "metrics" / "repro.json").read_text())["outputs"].values()
    same = sum(output["same_in_both_runs"] for output in outputs)
    assert f"{same} of {len(outputs)} outputs had equal bytes" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_generated_figures_are_those_of_the_committed_results():
    command = [sys.executable, BENCHMARKS / "pages.py", "--check"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_readme_shows_what_its_commands_print(tmp_path, finished):
    workspace = Workspace(tmp_path / "workspace", finished)
    workspace.commit()
    script = ["python", "benchmarks/quality/experiment.py", "first_experiment", "train.max_tokens=5120"]
    workspace.run(*script, PYTHONPATH="src:benchmarks")
    code = "import pages; print(pages.experiment('first_experiment'))"
    shown = workspace.run("python", "-c", code, PYTHONPATH="src:benchmarks").stdout
    assert "metrics/eval.json   bits_per_byte" in shown and "## workspace − main: " in shown
    assert "- Documents: " in shown and "- Seeds: " in shown and "| documents, all" in shown


# The pipeline of the results.


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
