"""judge: levels of a night, answers from figures, and a table of judgements in which each row follows from the others.

The simulation of a night is benchmarks/quality/judge.py, which calls the code of the command.
"""

import itertools
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from support import ROOT
from tools.judge.decision import MOST_SEEDS, Figures, Noise, Spread, decide, pooled_noise
from tools.judge.judgements import Pair, columns, judge, read_judgements, write_judgements
from tools.judge.levels import FALSE_RATE, next_level, share
from tools.judge.picture import save_picture

PAIR = Pair("a" * 40, "b" * 40, "c" * 40, "d" * 40, "Half of the layers", "0123456789abcdef", 1000, 1)
GAIN = Figures(3, 1.35, 1.30, -0.05, 0.004, 0.005, -0.06, -0.04, -0.07, -0.03)
NOISE = Noise(0.005, 30)


# Levels.


def test_levels_before_a_kept_change_spend_half_of_the_false_rate_and_half_of_that_in_the_first_hundred():
    levels = [next_level([False] * number) for number in range(10_000)]

    assert sum(levels) == pytest.approx(FALSE_RATE / 2, rel=0.02)
    assert sum(levels[:100]) == pytest.approx(FALSE_RATE / 4)
    assert sum(share(number) for number in range(1, 100_000)) == pytest.approx(1, rel=0.002)


def test_a_kept_change_earns_level_for_those_after_it():
    without = next_level([False] * 10)
    with_one = next_level([False, True] + [False] * 8)
    with_two = next_level([True, True] + [False] * 8)

    assert with_one == pytest.approx(without + FALSE_RATE / 2 * share(9))
    assert with_two == pytest.approx(without + FALSE_RATE / 2 * share(10) + FALSE_RATE * share(9))


def test_the_levels_are_those_of_lord_plus_plus():
    """The formula of Ramdas et al. 2017, written again: W0 γ(t) + (α - W0) γ(t - τ1) + α Σ γ(t - τj)."""
    kept = [False, True, False, False, True, False, True, False]
    t = len(kept) + 1
    first, *others = [i for i, is_kept in enumerate(kept, 1) if is_kept]

    expected = 0.025 * share(t) + 0.025 * share(t - first) + 0.05 * sum(share(t - other) for other in others)

    assert next_level(kept) == pytest.approx(expected)


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks/quality/judge.py")))


def test_nights_without_gains_keep_a_false_change_in_at_most_5_percent(simulation):
    found = simulation.nights(simulation.judged_night, 100, num_gains=0)
    greedy = simulation.nights(simulation.greedy_night, 100, num_gains=0)

    assert found["nights_with_a_false_one"] <= stats.binom.ppf(0.999, 100, 0.05) / 100
    assert found["kept_gains"] == 0
    assert greedy["nights_with_a_false_one"] > 0.9 and greedy["kept_false"] > 3


def test_nights_with_gains_find_most_of_them_and_keep_few_false_ones(simulation):
    found = simulation.nights(simulation.judged_night, 30, num_gains=10)
    greedy = simulation.nights(simulation.greedy_night, 30, num_gains=10)

    assert found["kept_gains"] > 7
    assert found["false_share_of_kept"] < 0.05
    assert greedy["false_share_of_kept"] > 0.5


@pytest.mark.slow
def test_two_thousand_nights_have_the_recorded_rates(simulation):
    recorded = read_json(simulation.RESULTS / "judge.json")["judge"]["no_gains"]

    assert recorded == simulation.nights(simulation.judged_night, 2000, num_gains=0)
    assert recorded["nights_with_a_false_one"] <= FALSE_RATE


# Answers.


def test_a_gain_over_seeds_and_documents_is_kept():
    decision = decide(GAIN, NOISE, level=0.0005)

    t = -0.05 / (0.005 * np.sqrt(2 / 3))
    assert decision.answer == "keep" and decision.more_seeds == 0
    assert decision.p == pytest.approx(stats.t.cdf(t, 30), rel=1e-6)


@pytest.mark.parametrize(
    ("figures", "noise", "level"),
    [
        (GAIN._replace(documents_high=0.001), NOISE, 0.0005),
        (GAIN._replace(documents_low=None, documents_high=None), NOISE, 0.0005),
        (GAIN._replace(seeds=MOST_SEEDS, seeds_high=0.001), NOISE, 0.0005),
        (GAIN._replace(seeds=MOST_SEEDS, difference=-0.002), NOISE, 0.0005),
        (GAIN._replace(difference=0.05, candidate_bpb=1.4), NOISE, 0.0005),
        (GAIN, Noise(0.0, 30), 0.0005),
    ],
)
def test_what_is_not_shown_is_not_kept(figures, noise, level):
    assert decide(figures, noise, level).answer != "keep"


def test_a_change_that_makes_it_worse_is_rejected_however_clear():
    worse = GAIN._replace(difference=0.05, seeds_low=0.04, seeds_high=0.06, documents_low=0.03, documents_high=0.07)

    decision = decide(worse, NOISE, level=0.9)

    assert (decision.answer, decision.reason) == ("reject", "not better")


def test_a_gain_that_more_seeds_could_show_is_undecided():
    """0.012 is three standard errors at 3 seeds, too few for the level; twice as many seeds are asked for."""
    small = GAIN._replace(difference=-0.012, candidate_bpb=1.338, seeds_high=0.001)

    decision = decide(small, NOISE, level=0.0005)

    assert (decision.answer, decision.more_seeds) == ("undecided", 3)
    assert decide(small._replace(seeds=8), NOISE, level=0.0000005).more_seeds in (0, 4)


def test_a_gain_that_no_number_of_seeds_could_show_is_rejected():
    tiny = GAIN._replace(difference=-0.001, candidate_bpb=1.349, seeds_high=0.01)

    assert decide(tiny, NOISE, level=0.0005).answer == "reject"


def test_noise_is_pooled_as_in_an_analysis_of_variance():
    rng = np.random.default_rng(0)
    groups = [rng.normal(mean, 1, size) for mean, size in ((0, 3), (5, 6), (-2, 12))]

    found = pooled_noise({str(i): Spread(float(each.std(ddof=1)), len(each)) for i, each in enumerate(groups)})

    residuals = np.concatenate([each - each.mean() for each in groups])
    assert found.degrees_of_freedom == 18
    assert found.sd == pytest.approx(np.sqrt((residuals**2).sum() / 18))


# The table of judgements.


def judged_night(count: int = 5) -> list:
    """Return judgements of several changes, the second of which is kept."""
    rng = np.random.default_rng(3)
    judgements = []
    base = "base"
    base_bpb = 1.35
    for number in range(1, count + 1):
        gain = -0.2 if number == 2 else float(rng.normal(0, 0.002))
        figures = GAIN._replace(
            seeds=12 if number == 2 else 3,
            base_bpb=base_bpb,
            candidate_bpb=round(base_bpb + gain, 8),
            difference=round(gain, 8),
            base_sd=0.004,
            candidate_sd=round(0.004 + number / 10_000, 8),
        )
        pair = PAIR._replace(base=base, candidate=f"c{number}", base_tree=base, candidate_tree=f"c{number}")
        judgements.append(judge(judgements, pair, figures))
        if judgements[-1].is_kept:
            base = f"c{number}"
            base_bpb = round(base_bpb + gain, 8)
    return judgements


def test_the_table_is_read_as_it_was_written(tmp_path):
    judgements = judged_night()

    write_judgements(judgements, tmp_path / "judgements.csv")

    read = read_judgements(tmp_path / "judgements.csv")
    assert [each.pair for each in read] == [each.pair for each in judgements]
    assert [each.figures for each in read] == [each.figures for each in judgements]
    assert [each.decision.answer for each in read] == [each.decision.answer for each in judgements]
    assert [each.is_kept for each in read] == [False, True, False, False, False]


def test_a_subject_with_commas_quotes_and_line_separators_is_one_value(tmp_path):
    pair = PAIR._replace(change='Try "wide", then\u2028narrow')

    write_judgements([judge([], pair, GAIN)], tmp_path / "judgements.csv")

    assert read_judgements(tmp_path / "judgements.csv")[0].pair == pair


def test_no_file_is_no_judgement(tmp_path):
    assert read_judgements(tmp_path / "judgements.csv") == []


def edited(path, column: str, value: str) -> None:
    """Change a value of the second judgement, which kept its change."""
    lines = path.read_text().splitlines()
    values = lines[2].split(",")
    values[columns().index(column)] = value
    path.write_text("\n".join([*lines[:2], ",".join(values), *lines[3:]]) + "\n")


EDITS = {
    "judgement": "7", "text": "other", "tokens": "2000", "seeds": "6", "base_bpb": "1.40000000",
    "candidate_bpb": "1.10000000", "difference": "-0.30000000", "base_sd": "0.00300000", "candidate_sd": "0.00300000",
    "seeds_high": "0.01000000", "documents_high": "0.01000000", "noise_sd": "0.00300000",
    "noise_degrees_of_freedom": "99", "p": "1e-12", "level": "0.05", "answer": "reject", "more_seeds": "3",
}  # fmt: skip


@pytest.mark.parametrize(("column", "value"), EDITS.items())
def test_a_value_that_does_not_follow_from_the_others_is_found(tmp_path, column, value):
    path = tmp_path / "judgements.csv"
    write_judgements(judged_night(), path)
    edited(path, column, value)

    with pytest.raises(IntegrityError, match=r"line \d: .*the file was edited; `git restore judgements.csv`"):
        read_judgements(path)


def test_an_edited_figure_that_decides_nothing_is_found_by_judging_again_only(tmp_path):
    path = tmp_path / "judgements.csv"
    write_judgements(judged_night(), path)
    edited(path, "seeds_low", "-0.09000000")

    assert read_judgements(path)[1].figures.seeds_low == -0.09


def test_a_row_that_was_taken_out_is_found(tmp_path):
    """Without a rejected change, the levels of those after it would be higher."""
    path = tmp_path / "judgements.csv"
    write_judgements(judged_night(), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")

    with pytest.raises(IntegrityError, match="line 2: judgement is 2"):
        read_judgements(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: "<<<<<<< HEAD\n" + text, "a merge left conflicts in it"),
        (lambda text: text.replace("judgement,", "number,", 1), "line 1 must be judgement,base"),
        (lambda text: text.rsplit(",", 1)[0], "line 6: 24 values; there must be 25"),
        (lambda text: text.replace("1.35000000", "many", 1), "line 2: could not convert string to float: 'many'"),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path, damage, said):
    path = tmp_path / "judgements.csv"
    write_judgements(judged_night(), path)
    path.write_text(damage(path.read_text()))

    with pytest.raises(IntegrityError, match=said):
        read_judgements(path)


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

    levels = [each.decision.level for each in judgements]
    kept = [each.is_kept for each in judgements]

    assert levels == [next_level(before) for before in itertools.islice(prefixes(kept), len(kept))]


def prefixes(values: list):
    """Yield the values before each position."""
    return (values[:length] for length in range(len(values) + 1))


def test_equal_judgements_give_an_equal_picture(tmp_path):
    for name in ("first.png", "second.png"):
        save_picture(judged_night(8), tmp_path / name)

    content = (tmp_path / "first.png").read_bytes()
    assert content.startswith(b"\x89PNG") and content == (tmp_path / "second.png").read_bytes()
