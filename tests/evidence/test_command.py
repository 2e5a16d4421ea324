"""The command evidence: what it prints of two tables, its JSON, and its exit status."""

import json

import numpy as np
import pytest

from evidence.command import main

NUM_DOCUMENTS = 40


def write(name: str, loss: float, seeds=(1, 2, 3)) -> str:
    """Write the table of a group whose documents have this loss in nats a byte, and seeds that move it a little."""
    rows = ["run,seed,document,nats,utf8_bytes"]
    for seed in seeds:
        luck = np.random.default_rng(seed).normal(0, 0.01)
        for document in range(NUM_DOCUMENTS):
            own = np.random.default_rng([seed, document, int(1000 * loss)]).normal(0, 0.001)
            rows.append(f"{name},{seed},{document},{100 * (loss + luck + own + 0.01 * (document % 7))},100")
    with open(f"{name}.csv", "w") as file:
        file.write("\n".join(rows) + "\n")
    return f"{name}.csv"


@pytest.fixture
def tables(tmp_path, monkeypatch) -> list[str]:
    """A baseline, and a group that is better by 0.1 nats a byte."""
    monkeypatch.chdir(tmp_path)
    return [write("base", 1.0), write("wider", 0.9)]


def test_compare_answers_in_words_and_in_json(tables, capsys):
    assert main(["compare", *tables]) == 0
    said = capsys.readouterr().out
    assert main(["compare", *tables, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert "better" in said
    assert document["schema"] == "reprolm.compare/1"
    assert document["baseline"]["name"] == "base"
    (found,) = document["comparisons"]
    assert found["seeds"]["difference"] == pytest.approx(-0.1 / np.log(2), abs=0.01)


def test_require_sets_the_status_and_the_baseline_decides_the_direction(tables, capsys):
    better = main(["compare", *tables, "--require", "better"])
    worse = main(["compare", *tables, "--require", "better", "--baseline", "wider"])

    assert (better, worse) == (0, 1)
    assert "not better than wider: base" in capsys.readouterr().err


def test_within_says_whether_a_change_costs_nothing(tables, capsys):
    same = write("same", 1.0001)
    main(["compare", "base.csv", same, "--within", "0.05"])
    equal = capsys.readouterr().out
    main(["compare", *tables, "--within", "0.05"])
    different = capsys.readouterr().out

    assert "equivalent" in equal
    assert "not equivalent" not in equal
    assert "not equivalent" in different


def test_noise_is_the_spread_over_seeds(tables, capsys):
    assert main(["noise", "base.csv", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    (configuration,) = document["configurations"]
    lucks = [np.random.default_rng(seed).normal(0, 0.01) for seed in (1, 2, 3)]
    assert configuration["standard_deviation"] == pytest.approx(np.std(lucks, ddof=1) / np.log(2), rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "base.csv", "--baseline", "other"], "--baseline is other"),
        (["compare", "base.csv", "wider.csv", "--within", "0"], "--within is 0"),
        (["compare", "base.csv", "wider.csv", "--resamples", "9"], "--resamples is 9"),
        (["noise", "base.csv", "--confidence", "2"], "--confidence is 2"),
        (["noise", "missing.csv"], "missing.csv: cannot be read"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_and_status_2(tables, capsys, arguments, said):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
