"""judge: levels of a night, answers from figures, and a table of judgements in which each row follows from the others.

The simulation of a night is benchmarks/quality/judge.py, which calls the code of the command.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from evidence.judge.levels import FALSE_RATE, next_level
from lm.core.errors import IntegrityError
from lm.core.files import read_json
from support import ROOT
from tools.judge.decision import MOST_SEEDS, Figures, Noise, Spread, decide, pooled_noise
from tools.judge.judgements import Pair, columns, judge, read_judgements, write_judgements
from tools.judge.picture import save_picture

PAIR = Pair(
    base="a" * 40,
    candidate="b" * 40,
    base_tree="c" * 40,
    candidate_tree="d" * 40,
    change="Half of the layers",
    text="0123456789abcdef",
    tokens=1000,
    first_seed=1,
)
GAIN = Figures(
    seeds=3,
    base_bpb=1.35,
    candidate_bpb=1.30,
    difference=-0.05,
    base_sd=0.004,
    candidate_sd=0.005,
    seeds_low=-0.06,
    seeds_high=-0.04,
    documents_low=-0.07,
    documents_high=-0.03,
)
NOISE = Noise(sd=0.005, degrees_of_freedom=30)
LEVEL = 0.0005


# Nights.


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks/quality/judge.py")))


def test_nights_without_gains_keep_a_false_change_in_at_most_5_percent(simulation):
    found = simulation.nights(simulation.judged_night, 100, num_gains=0)
    greedy = simulation.nights(simulation.greedy_night, 100, num_gains=0)

    highest_by_chance = stats.binom.ppf(0.999, 100, 0.05) / 100
    assert found["nights_with_a_false_one"] <= highest_by_chance
    assert found["kept_gains"] == 0
    assert greedy["nights_with_a_false_one"] > 0.9
    assert greedy["kept_false"] > 3


def test_nights_with_gains_find_most_of_them_and_keep_few_false_ones(simulation):
    found = simulation.nights(simulation.judged_night, 30, num_gains=10)
    greedy = simulation.nights(simulation.greedy_night, 30, num_gains=10)

    assert found["kept_gains"] > 7
    assert found["false_share_of_kept"] < 0.05
    assert greedy["false_share_of_kept"] > 0.5


@pytest.mark.slow
def test_two_thousand_nights_have_the_recorded_rates(simulation):
    recorded = read_json(simulation.RESULTS / "judge.json")["judge"]["no_gains"]

    found = simulation.nights(simulation.judged_night, 2000, num_gains=0)

    assert found == recorded
    assert recorded["nights_with_a_false_one"] <= FALSE_RATE


# Answers.


def test_a_gain_over_seeds_and_documents_is_kept():
    decision = decide(GAIN, NOISE, LEVEL)

    t = GAIN.difference / (NOISE.sd * np.sqrt(2 / GAIN.seeds))
    assert decision.answer == "keep"
    assert decision.more_seeds == 0
    assert decision.p == pytest.approx(stats.t.cdf(t, NOISE.degrees_of_freedom), rel=1e-6)


@pytest.mark.parametrize(
    ("figures", "noise"),
    [
        pytest.param(GAIN._replace(documents_high=0.001), NOISE, id="not over documents"),
        pytest.param(GAIN._replace(documents_low=None, documents_high=None), NOISE, id="too few documents"),
        pytest.param(GAIN._replace(seeds=MOST_SEEDS, seeds_high=0.001), NOISE, id="not over seeds"),
        pytest.param(GAIN._replace(seeds=MOST_SEEDS, difference=-0.002), NOISE, id="smaller than the noise"),
        pytest.param(GAIN._replace(difference=0.05, candidate_bpb=1.4), NOISE, id="worse"),
        pytest.param(GAIN, Noise(sd=0.0, degrees_of_freedom=30), id="unknown noise"),
    ],
)
def test_what_is_not_shown_is_not_kept(figures, noise):
    assert decide(figures, noise, LEVEL).answer != "keep"


def test_a_change_that_makes_it_worse_is_rejected_however_clear():
    worse = GAIN._replace(difference=0.05, seeds_low=0.04, seeds_high=0.06, documents_low=0.03, documents_high=0.07)

    decision = decide(worse, NOISE, level=0.9)

    assert decision.answer == "reject"
    assert decision.reason == "not better"


# Three standard errors at 3 seeds, too few for LEVEL.
SMALL_GAIN = GAIN._replace(difference=-0.012, candidate_bpb=1.338, seeds_high=0.001)


def test_a_gain_that_more_seeds_could_show_is_undecided_and_asks_for_twice_as_many():
    decision = decide(SMALL_GAIN, NOISE, LEVEL)

    assert decision.answer == "undecided"
    assert decision.more_seeds == 3


def test_more_seeds_than_the_most_are_not_asked_for():
    decision = decide(SMALL_GAIN._replace(seeds=8), NOISE, LEVEL)

    assert decision.answer == "undecided"
    assert decision.more_seeds == MOST_SEEDS - 8


def test_a_gain_that_no_number_of_seeds_could_show_is_rejected():
    tiny = GAIN._replace(difference=-0.001, candidate_bpb=1.349, seeds_high=0.01)

    assert decide(tiny, NOISE, LEVEL).answer == "reject"


def test_noise_is_pooled_as_in_an_analysis_of_variance():
    rng = np.random.default_rng(0)
    groups = {
        "a": rng.normal(0, 1, 3),
        "b": rng.normal(5, 1, 6),
        "c": rng.normal(-2, 1, 12),
    }
    spreads = {name: Spread(float(values.std(ddof=1)), len(values)) for name, values in groups.items()}

    noise = pooled_noise(spreads)

    residuals = np.concatenate([values - values.mean() for values in groups.values()])
    assert noise.degrees_of_freedom == 18
    assert noise.sd == pytest.approx(np.sqrt((residuals**2).sum() / 18))


# The table of judgements.


def judged_night(count: int = 5) -> list:
    """Return judgements of several changes, the second of which is kept."""
    rng = np.random.default_rng(3)
    judgements = []
    base = "base"
    base_bpb = 1.35
    for number in range(1, count + 1):
        is_gain = number == 2
        difference = round(-0.2 if is_gain else float(rng.normal(0, 0.002)), 8)
        figures = GAIN._replace(
            seeds=12 if is_gain else 3,
            base_bpb=base_bpb,
            candidate_bpb=round(base_bpb + difference, 8),
            difference=difference,
            base_sd=0.004,
            candidate_sd=round(0.004 + number / 10_000, 8),
        )
        candidate = f"c{number}"
        pair = PAIR._replace(base=base, candidate=candidate, base_tree=base, candidate_tree=candidate)
        judgements.append(judge(judgements, pair, figures))
        if judgements[-1].is_kept:
            base = candidate
            base_bpb = figures.candidate_bpb
    return judgements


@pytest.fixture
def table(tmp_path) -> Path:
    """A table of five judgements, the second of which kept its change."""
    path = tmp_path / "judgements.csv"
    write_judgements(judged_night(), path)
    return path


def test_the_table_is_read_as_it_was_written(table):
    written = judged_night()

    read = read_judgements(table)

    assert [each.pair for each in read] == [each.pair for each in written]
    assert [each.figures for each in read] == [each.figures for each in written]
    assert [each.decision.answer for each in read] == [each.decision.answer for each in written]
    assert [each.is_kept for each in read] == [False, True, False, False, False]


def test_a_subject_with_commas_quotes_and_line_separators_is_one_value(tmp_path):
    pair = PAIR._replace(change='Try "wide", then\u2028narrow')

    write_judgements([judge([], pair, GAIN)], tmp_path / "judgements.csv")
    (read,) = read_judgements(tmp_path / "judgements.csv")

    assert read.pair == pair


def test_no_file_is_no_judgement(tmp_path):
    assert read_judgements(tmp_path / "judgements.csv") == []


def edit(table: Path, column: str, value: str) -> None:
    """Change a value of the second judgement."""
    lines = table.read_text().splitlines()
    values = lines[2].split(",")
    values[columns().index(column)] = value
    lines[2] = ",".join(values)
    table.write_text("\n".join(lines) + "\n")


EDITS = {
    "judgement": "7",
    "text": "other",
    "tokens": "2000",
    "seeds": "6",
    "base_bpb": "1.40000000",
    "candidate_bpb": "1.10000000",
    "difference": "-0.30000000",
    "base_sd": "0.00300000",
    "candidate_sd": "0.00300000",
    "seeds_high": "0.01000000",
    "documents_high": "0.01000000",
    "noise_sd": "0.00300000",
    "noise_degrees_of_freedom": "99",
    "p": "1e-12",
    "level": "0.05",
    "answer": "reject",
    "more_seeds": "3",
}


@pytest.mark.parametrize(("column", "value"), EDITS.items())
def test_a_value_that_does_not_follow_from_the_others_is_found(table, column, value):
    edit(table, column, value)

    with pytest.raises(IntegrityError, match=r"line \d: .*the file was edited; `git restore judgements.csv`"):
        read_judgements(table)


def test_an_edited_figure_that_decides_nothing_is_found_by_judging_again_only(table):
    edit(table, "seeds_low", "-0.09000000")

    second = read_judgements(table)[1]

    assert second.figures.seeds_low == -0.09


def test_a_row_that_was_taken_out_is_found(table):
    """Without a rejected change, the levels of those after it would be higher."""
    header, _, *others = table.read_text().splitlines()
    table.write_text("\n".join([header, *others]) + "\n")

    with pytest.raises(IntegrityError, match="line 2: judgement is 2"):
        read_judgements(table)


DAMAGES = {
    "conflicts of a merge": (
        lambda text: "<<<<<<< HEAD\n" + text,
        "a merge left conflicts in it",
    ),
    "another header": (
        lambda text: text.replace("judgement,", "number,", 1),
        "line 1 must be judgement,base",
    ),
    "a value too few": (
        lambda text: text.rsplit(",", 1)[0],
        "line 6: 24 values; there must be 25",
    ),
    "a number that is none": (
        lambda text: text.replace("1.35000000", "many", 1),
        "line 2: could not convert string to float: 'many'",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_table_is_refused_with_its_line(table, case):
    damage, said = DAMAGES[case]
    table.write_text(damage(table.read_text()))

    with pytest.raises(IntegrityError, match=said):
        read_judgements(table)


def test_noise_counts_equal_files_once_and_other_texts_not_at_all():
    """A base keeps its runs in every judgement, so its spread must count once, with all of its seeds."""
    first = judge([], PAIR, GAIN)
    of_other_text = judge([], PAIR._replace(text="other", base_tree="x", candidate_tree="y"), GAIN)

    more_seeds = judge([first, of_other_text], PAIR, GAIN._replace(seeds=6))
    other_change = judge([first], PAIR._replace(candidate_tree="e"), GAIN)

    assert first.decision.noise.degrees_of_freedom == 4
    assert more_seeds.decision.noise.degrees_of_freedom == 10
    assert other_change.decision.noise.degrees_of_freedom == 6


def test_each_judgement_has_the_level_after_all_before_it():
    judgements = judged_night(8)

    kept = [each.is_kept for each in judgements]
    for number, judgement in enumerate(judgements):
        assert judgement.decision.level == next_level(kept[:number])


def test_equal_judgements_give_an_equal_picture(tmp_path):
    first = tmp_path / "first.png"
    second = tmp_path / "second.png"

    save_picture(judged_night(8), first)
    save_picture(judged_night(8), second)

    assert first.read_bytes().startswith(b"\x89PNG")
    assert first.read_bytes() == second.read_bytes()
