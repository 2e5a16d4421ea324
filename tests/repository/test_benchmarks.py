"""How benchmarks round and show their results, and that the benchmark for GPUs runs on a CPU."""

import json
import os
import subprocess
import sys

import pytest

import large_corpus
import summarize
from support import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_what_is_committed_was_measured_on_an_idle_machine(path):
    assert json.loads(path.read_text()).get("idle", True)


@pytest.mark.parametrize(("value", "shown"), [(500.0, "500"), (1.234, "1.2"), (18.2, "18"), (0.0267, "0.027")])
def test_a_size_is_never_shown_as_a_power_of_ten(value, shown):
    assert large_corpus.short(value) == shown


def test_a_ratio_shows_its_range_once_there_is_one():
    assert summarize.ratio_in_words({"median": 2.345, "min": 2.1, "max": 2.5}) == "2.35 (2.10 to 2.50)"
    assert summarize.ratio_in_words({"median": 40.5, "min": 40.4, "max": 41.6}) == "40 (40 to 42)"
    assert summarize.ratio_in_words({"median": 5.0, "min": 5.0, "max": 5.0}) == "5.0"


@pytest.mark.slow  # it compiles three models
def test_the_benchmark_for_gpus_runs_on_a_cpu(tmp_path):
    script, out = ROOT / "benchmarks" / "gpu_step.py", tmp_path / "gpu.json"
    command = [sys.executable, script, "--device", "cpu", "--quick", "--out", out]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*map(str, command)], env=environment, check=True, timeout=900)
    presets = json.loads(out.read_text())["presets"]
    assert set(presets) == {"gpt2_size", "gemma3_270m"}
    assert all(rate["median"] > 0 for found in presets.values() for rate in found["tokens_per_s"].values())
