"""How benchmarks round and show their results, and that the benchmark for GPUs runs on a CPU."""

import json
import os
import subprocess
import sys

import pytest

import figures
import figures_bits
import large_corpus
import recipes
import summarize
from lm.core.errors import ParamsError
from lm.core.params import coerce, read_yaml
from lm.train.config import TrainParams
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


def test_processors_are_listed_with_what_their_list_does_not_show():
    one = {"processor": "AMD EPYC", "how": "natively", "run": "minute", "threads": 2, "weights": "ab12"}
    emulated = one | {"how": "emulated as Intel Haswell by QEMU 7.2", "run": "short"}
    text = figures_bits.table_of_processors([one, one | {"threads": 1}, emulated], ["ab12"])
    assert "| AMD EPYC | natively | `minute` | 1, 2 | `ab12` |" in text and text.count("AMD EPYC") == 2
    assert "not that the run took place on one. No real Intel processor" in text
    intel = figures_bits.table_of_processors([one, one | {"processor": "Intel(R) Xeon(R)"}], ["ab12"])
    assert "No real Intel" not in intel and "emulated" not in intel
    emulated_on_intel = figures_bits.table_of_processors([emulated | {"processor": "Intel(R) Xeon(R)"}], ["ab12"])
    assert "No real Intel" in emulated_on_intel
    assert "earlier versions" not in text
    later = figures_bits.table_of_processors([one, one | {"weights": "cd34"}], ["cd34"])
    assert "The present runs end with `cd34`; other digests are those of earlier versions." in later
    assert "No processor is recorded yet." in figures_bits.table_of_processors([], [])


def test_an_average_of_the_weights_helps_in_the_middle_of_the_default_run_and_not_at_its_end():
    """As docs/experiments.md says, and as the default of params.yaml supposes."""
    found = figures.read("weight_average")
    assert list(found["nats_per_token"]) == ["1", "2", "3", "4", "5"]
    assert found["differences"]["40"]["average_decay 0.98"]["high"] < -0.05
    assert all(each["low"] > 0 for each in found["differences"]["100"].values())
    assert read_yaml(ROOT / "params.yaml")["train"]["average_decay"] == found["train"]["average_decay"] == 0.0


def test_the_phenomena_sum_to_the_excess_of_the_recorded_stories():
    last = figures.read("phenomena")["runs"]["stories"]["states"][-1]["phenomena"].values()
    excess = figures.read("stories")["evaluation"]["entropy"]["excess_bits_per_document"]
    assert sum(each["excess_bits_per_story"] for each in last) == pytest.approx(excess, abs=1e-3)
    assert sum(each["tokens_per_story"] for each in last) == pytest.approx(
        figures.read("stories")["evaluation"]["tokens"] / figures.read("stories")["evaluation"]["documents"]
    )


def test_recipes_have_parameters_that_training_accepts_and_batches_for_large_models():
    for name in recipes.RECIPES:
        params, _ = recipes.changed_params(recipes.command(name))
        train = coerce(params["train"], TrainParams, "train", name)
        assert train.max_tokens == train.max_steps * train.batch_tokens, "no tokens are left out"
        assert train.batch_tokens >= 16_384 and train.max_steps >= 1_000
        assert 10 <= train.max_steps // train.eval_every_steps <= 20, "validation costs little"
        assert params["data"]["source"] == "tinystories"


def test_hours_are_flop_by_flop_per_second():
    default, twice = (recipes.cost(f"dvc exp run -S train.max_tokens={tokens}") for tokens in (1_024_000, 2_048_000))
    assert default.parameters == figures.read("default")["metrics"]["parameters"]
    assert twice.flops == pytest.approx(2 * default.flops) and twice.memory_bytes == default.memory_bytes
    assert twice.hours == {name: pytest.approx(2 * hours) for name, hours in default.hours.items()}
    assert default.hours["H100"] == pytest.approx(default.flops / (0.4 * 989e12) / 3600)
    step = figures.read("train_step")["questions"]["30m"]
    per_second = step["tokens_per_s"]["ours"] * step["flop_per_token"]
    assert default.hours["2 CPU cores"] == pytest.approx(default.flops / per_second / 3600)
    with pytest.raises(ParamsError, match="seq_len"):
        recipes.cost("dvc exp run -S train.seq_len=100")


@pytest.mark.parametrize(("hours", "words"), [(0.001, "1 min"), (0.5, "30 min"), (5.23, "5.2 h"), (290, "12 days")])
def test_a_time_is_given_in_minutes_hours_or_days(hours, words):
    assert recipes.in_words(hours) == words


@pytest.mark.slow  # it compiles three models
def test_the_benchmark_for_gpus_runs_on_a_cpu(tmp_path):
    script, out = ROOT / "benchmarks" / "gpu_step.py", tmp_path / "gpu.json"
    command = [sys.executable, script, "--device", "cpu", "--quick", "--out", out]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*map(str, command)], env=environment, check=True, timeout=900)
    presets = json.loads(out.read_text())["presets"]
    assert set(presets) == {"gpt2_size", "gemma3_270m"}
    assert all(rate["median"] > 0 for found in presets.values() for rate in found["tokens_per_s"].values())
