"""scaling: the fit recovers a known law, intervals contain the true value, unsuitable runs are refused."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from extras.scaling import scaling
from extras.scaling.law import (
    Runs,
    best_split,
    fit,
    fit_frontier,
    fit_law,
    interval,
    loss,
    named,
    predict,
    predict_held_back,
    too_few,
    work_law,
)
from tools.common import revisions

TRUE = {"E": 0.16, "A": 3.0, "alpha": 0.35, "B": 40.0, "beta": 0.45}
LAW = np.array([np.log(TRUE["A"]), TRUE["alpha"], np.log(TRUE["B"]), TRUE["beta"], np.log(TRUE["E"])])
SIZES, TOKENS = np.geomspace(2e4, 2e6, 6), np.array([2e5, 6e5, 1.8e6])


def sweep(noise: float = 0.0, seed: int = 0, sizes=SIZES, tokens=TOKENS) -> Runs:
    """Runs over a grid of sizes and tokens that follow LAW but for log-normal noise; 8 N^0.98 FLOP a token."""
    n, d = (grid.ravel() for grid in np.meshgrid(sizes, tokens, indexing="ij"))
    losses = loss(LAW, n, d) * np.exp(noise * np.random.default_rng(seed).normal(size=len(n)))
    return Runs([f"run-{i}" for i in range(len(n))], n, d, 8 * n**0.98 * d, losses)


# The law.


def test_loss_equals_the_formula():
    n, d = 1e5, 3e6
    assert loss(LAW, n, d)[0] == pytest.approx(0.16 + 3.0 / n**0.35 + 40.0 / d**0.45)
    assert loss(np.stack([LAW, LAW]), np.array([n, 1e6, 1e7]), d).shape == (2, 3)


def test_fit_recovers_a_known_law():
    found = named(fit_law(sweep()))
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name


def test_intervals_are_quantiles_and_include_the_scatter_of_residuals():
    assert interval(50, np.arange(101), 0.9, 10**6) == pytest.approx((50, 5, 95), rel=1e-4)
    assert interval(5, np.arange(10, 111), 0.5, 10**6) == pytest.approx((5, 5, 85), rel=1e-4)  # holds its value
    assert interval(50, np.arange(101), 0.95, 18).high == pytest.approx(50 * 1.95 ** (2.16037 / 1.95996), rel=1e-5)
    runs = sweep(0.01)
    found = fit(runs, 99, 1)
    residuals = np.log(runs.bits_per_byte / loss(found.law, runs.parameters, runs.tokens))
    assert found.scatter == pytest.approx((residuals - residuals.mean()) * (18 / 13) ** 0.5)
    inside = predict(found, runs.parameters[7], runs.tokens[7], 0.99, 1)
    assert inside.high / inside.low > np.exp(np.ptp(found.scatter)) * 0.98


# What follows from it.


def test_best_split_equals_a_search_for_the_least_loss():
    work = work_law(sweep())
    assert work == pytest.approx((8, 0.98))
    flops = np.array([1e12, 1e15])
    n, d = best_split(LAW, flops, work)
    assert 8 * n**0.98 * d == pytest.approx(flops)
    for i, compute in enumerate(flops):
        sizes = np.geomspace(n[i] / 30, n[i] * 30, 2001)
        losses = loss(LAW, sizes, compute / (8 * sizes**0.98))
        assert sizes[np.argmin(losses)] == pytest.approx(n[i], rel=0.01)


def test_frontier_fit_recovers_a_power_law_with_its_interval():
    flops = np.geomspace(1e10, 1e14, 9)
    found = fit_frontier(Runs([""] * 9, flops, flops, flops, 30 * flops**-0.1))
    assert (found.a, found.b) == pytest.approx((30, 0.1))
    expected = found.predict(1e16, 0.95)
    assert (expected.value, expected.low, expected.high) == pytest.approx((30 * 1e16**-0.1,) * 3)
    noisy = fit_frontier(Runs([""] * 9, flops, flops, flops, 30 * flops**-0.1 * np.tile([1.01, 0.99, 1], 3)))
    near, far = noisy.predict(1e14, 0.95), noisy.predict(1e18, 0.95)
    assert 0.01 < near.high / near.low - 1 < far.high / far.low - 1


def test_largest_runs_are_predicted_from_the_others_alone():
    runs = sweep(0.003)
    found = predict_held_back(runs, 99, 0.95, 1)
    assert list(found) == sorted(np.argsort(runs.flops)[-3:])
    largest = list(found)
    runs.bits_per_byte[largest] *= 10
    assert predict_held_back(runs, 99, 0.95, 1) == found
    for i, expected in found.items():
        assert expected.value == pytest.approx(runs.bits_per_byte[i] / 10, rel=0.03)


def test_too_few_runs_sizes_or_token_counts_are_named():
    assert too_few(sweep()) is None
    assert too_few(sweep(sizes=SIZES[:1])) == "3 runs, needed: at least 6; 1 model sizes, needed: at least 3"
    assert too_few(sweep(tokens=TOKENS[:2])) == "2 numbers of tokens, needed: at least 3"
    assert predict_held_back(sweep(sizes=SIZES[:3], tokens=TOKENS).only(np.arange(9) < 7), 99, 0.95, 1) == {}


# The command, on experiments of which only the records are made up.


def record(i: int, runs: Runs, text: str = "same") -> SimpleNamespace:
    """A stand-in for the Revision of a run that trained for twice the tokens of its best model."""
    sidecar = {"source": {"name": "s", "manifest_sha256": text}, "slice": {}, "documents": 1, "utf8_bytes": 1}
    results = {
        "training": {"parameters": int(runs.parameters[i]), "training_flops": 2 * float(runs.flops[i])},
        "best": {"tokens_seen": int(runs.tokens[i])},
        "last": {"tokens_seen": 2 * int(runs.tokens[i])},
        "evaluation": {
            "bits_per_byte": float(runs.bits_per_byte[i]), "bits_per_byte_se": 0.0006,
            "entropy": {"floor_bits_per_byte": 0.16},
        },
    }  # fmt: skip
    params = {"model.name": "m", "models.m.d_model": i // 3, "train.max_tokens": i % 3, "train.seed": 1}
    return SimpleNamespace(
        name=runs.names[i], params=lambda: params, read_json=lambda path: sidecar, results=lambda: results,
        read=lambda path: b'{"splits": {}}',
    )  # fmt: skip


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """The command over made-up experiments: (exit status, standard output, standard error)."""
    runs = sweep(0.003)
    records = {name: record(i, runs) for i, name in enumerate(runs.names)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaling, "Revision", records.__getitem__)
    monkeypatch.setattr(revisions, "experiment_names", lambda: list(records))

    def run_it(*arguments: str):
        return scaling.main(["--resamples", "99", *arguments]), *capsys.readouterr()

    run_it.records = records
    return run_it


def test_report_json_and_picture_show_the_same_fit(command, tmp_path):
    status, output, _ = command("--predict", "8e6", "7.2e6", "--predict_flops", "1e15", "--out", "found/scaling")
    files = {path.suffix: path.read_bytes() for path in (tmp_path / "found").iterdir()}
    assert status == 0 and set(files) == {".md", ".json", ".png"}
    found = json.loads(files[".json"])
    assert len(found["runs"]) == 18 and sum(bool(run["predicted_from_smaller_runs"]) for run in found["runs"]) == 3
    assert f"| {found['law']['alpha']['value']:.4g} |" in output
    asked = found["predicted"][0]["law"]
    assert asked["value"] == pytest.approx(loss(LAW, 8e6, 7.2e6)[0], rel=0.02)
    assert f"{asked['value']:.4f} | {asked['low']:.4f} to {asked['high']:.4f}" in output
    assert "The entropy of the text is 0.1600 bits per byte, inside the interval of E." in output
    assert ("The law is wrong far out" in output) == (found["law"]["E"]["value"] < 0.16)
    assert re.search(r"\d of 3 are inside their intervals", output)
    assert "Parameters that differ between these runs: `models.*.d_model`, `train.max_tokens`." in output
    assert files[".md"].decode().startswith(output.splitlines()[0]) and b"(scaling.png)" in files[".md"]
    assert command("--predict", "8e6", "7.2e6", "--predict_flops", "1e15", "--out", "found/scaling")[0] == 0
    assert {path.suffix: path.read_bytes() for path in (tmp_path / "found").iterdir()} == files


def test_unsuitable_runs_and_arguments_are_refused_in_one_sentence(command):
    status, output, error = command("run-0", "run-1", "run-2")
    assert status == 2 and output == "" and error.count("\n") == 1
    assert "the five parameters of the law need more: 3 runs, needed: at least 6" in error
    for arguments in (["--predict", "0", "1e6"], ["--predict_flops", "nan"], ["--resamples", "9"]):
        assert command(*arguments)[0] == 2, arguments


def test_a_law_that_predicts_less_than_the_entropy_says_so(command):
    for revision in command.records.values():
        revision.results()["evaluation"]["entropy"]["floor_bits_per_byte"] = 0.2
    status, output, _ = command("run-*", "--predict", "8e6", "7.2e6")
    assert status == 0 and "outside the interval of E" in output
    assert "**The law is wrong far out:** it predicts down to 0.1" in output
    assert "less than the entropy of 0.2000, which no model can reach" in output


def test_runs_with_other_validation_text_or_without_records_are_refused(command):
    del command.records["run-5"].results()["training"]["training_flops"]
    status, _, error = command()
    assert status == 4 and "run-5: its records have no training_flops" in error
    command.records["run-7"] = record(7, sweep(), text="other")
    status, _, error = command()
    assert status == 4 and "sha256" in error


def test_losses_are_paired_with_the_tokens_and_compute_of_the_best_model(command, tmp_path):
    assert command()[0] == 0
    runs, (first, *_) = sweep(0.003), json.loads((tmp_path / "comparisons/scaling.json").read_bytes())["runs"]
    assert (first["tokens"], first["flops"]) == (runs.tokens[0], pytest.approx(runs.flops[0]))
