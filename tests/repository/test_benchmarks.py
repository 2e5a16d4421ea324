"""Check that quoted figures are those of benchmarks/results, and that the benchmark for GPUs runs."""

import json
import os
import re
import subprocess
import sys

import pytest

import large_corpus
import summarize
from support import ROOT


def test_the_table_is_the_one_of_the_results():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert summarize.BEGIN in readme and summarize.with_table(readme, summarize.all_rows()) == readme


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_what_is_committed_was_measured_on_an_idle_machine(path):
    assert json.loads(path.read_text()).get("idle", True)


def test_the_example_of_seeds_is_the_committed_one():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\nAn example: is Muon")[1].split("\n```")[2]
    result = (ROOT / "benchmarks" / "results" / "optimizers.md").read_text(encoding="utf-8")
    figures = re.findall(r"-?\d\.\d{2,}", section)
    assert len(figures) == 11 and all(figure in result for figure in figures)


def test_the_example_of_scaling_is_the_committed_one():
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n`make scaling` trains")[1].split("\n## ")[0]
    text = (ROOT / "benchmarks" / "results" / "scaling.md").read_text(encoding="utf-8")
    assert "misses its own runs by 11 % in the median and 37 % at" in section and "3, 25 and 40 % too low" in section
    assert "misses these runs by 11 % in the median and 37 % at most" in text
    assert all(off in text for off in ("-2.6 %", "-25.3 %", "-39.7 %")) and "3 of 3 within their intervals" in text
    assert "0.1638 bits per byte: inside E's interval" in text and "0.2347 |" in text


def test_the_table_of_large_corpora_is_the_one_of_the_results():
    found = json.loads((ROOT / "benchmarks" / "results" / "large_corpus.json").read_text())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rates = {name: rate / 1e9 for name, rate in found["rates"].items()}
    assert large_corpus.table(found["estimates"]) in readme
    assert f"at {1e3 * rates['tokenize']:.0f} MB of text a second and process" in readme
    assert f"SHA-256 at {rates['sha256']:.1f} and MD5 at {rates['md5']:.1f} GB/s a core" in readme


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
