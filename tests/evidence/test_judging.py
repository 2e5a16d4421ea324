"""judge: the level and the answer of a judgement, and a table in which each row follows from the others."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.quality.nights import WORLDS, judged_night, nights
from evidence.errors import Forged
from evidence.judge.decision import LOOKS, MOST_SEEDS, Figures, Fresh, agrees, decide
from evidence.judge.judgements import (
    JUDGEMENTS,
    Judgement,
    Pair,
    judge,
    read_judgements,
    spreads_of_others,
    write_judgements,
)
from evidence.judge.levels import next_level, share
from evidence.judge.night import figures_of
from evidence.runs import Run
from evidence.spread import Spread

PAIR = Pair(
    base="a" * 40,
    candidate="b" * 40,
    base_tree="c" * 40,
    candidate_tree="d" * 40,
    change="Half of the layers",
    text="0123456789abcdef",
    metric="",
    first_seed=1,
    least_gain=0.0,
)
GAIN = Figures(
    seeds=5,
    base_seeds=12,
    base_mean=1.35,
    candidate_mean=1.30,
    pairs_mean=-0.05,
    base_sd=0.01,
    candidate_sd=0.01,
    pairs_sd=0.003,
    documents_low=-0.07,
    documents_high=-0.03,
)
PAIRS = Spread(0.003**2, 30)
SIDES = Spread(0.01**2, 60)
UNKNOWN = Spread(0.0, 0)
LEVEL = 0.0005
BETTER = Fresh(12345, 1.35, 1.30)
WORSE = Fresh(12345, 1.35, 1.36)


def answer(figures: Figures, level: float = LEVEL, least_gain: float = 0.0, pairs: Spread = PAIRS):
    return decide(figures, pairs, SIDES, level, least_gain)


# Levels.


def test_the_levels_are_those_of_lord_plus_plus():
    """The formula of Ramdas et al. 2017, written again: W0 γ(t) + (α - W0) γ(t - τ1) + α Σ γ(t - τj)."""
    kept = [False, True, False, False, True, False, True, False]
    t = len(kept) + 1
    first, *others = [i for i, is_kept in enumerate(kept, 1) if is_kept]

    level = next_level(kept)

    initial_wealth = 0.025 * share(t)
    of_the_first = 0.025 * share(t - first)
    of_the_others = 0.05 * sum(share(t - other) for other in others)
    assert level == pytest.approx(initial_wealth + of_the_first + of_the_others)


# Nights.


def test_nights_without_gains_keep_a_false_change_in_at_most_5_percent():
    found = nights(judged_night, 20, WORLDS["unpaired_wide"])

    assert found["nights_with_a_false_one"] <= stats.binom.ppf(0.999, 20, 0.05) / 20


# Answers.


@pytest.mark.parametrize(
    ("figures", "pairs", "method", "se", "df"),
    [
        # The pool of others counts as 4 degrees of freedom beside the 4 of the five pairs.
        pytest.param({}, PAIRS, "pairs", 0.003 / math.sqrt(5), 8, id="pairs"),
        pytest.param(
            {"pairs_sd": 0.02, "pairs_mean": -0.01}, UNKNOWN, "sides", 0.01 * math.sqrt(1 / 5 + 1 / 12), 20,
            id="pairs that gain nothing"),
        pytest.param(
            {"candidate_sd": 0.1, "pairs_sd": 0.1}, PAIRS, "pairs", 0.1 / math.sqrt(5), 4,
            id="far wider than the others: its own spread alone"),
    ],
)  # fmt: skip
def test_p_is_that_of_pairs_or_sides_whose_spread_is_moderated_by_the_others(figures, pairs, method, se, df):
    decision = answer(GAIN._replace(**figures), pairs=pairs)

    assert decision.measured.method == method
    assert decision.measured.standard_error == pytest.approx(se)
    assert decision.p == pytest.approx(stats.t.cdf(-0.05 / se, df), rel=1e-6)
    assert decision.is_candidate_wide == decision.are_pairs_wide == (df == 4)


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param(GAIN._replace(documents_high=0.001), id="not over documents"),
        pytest.param(GAIN._replace(seeds=LOOKS[0]), id="too few seeds"),
        pytest.param(GAIN._replace(seeds=MOST_SEEDS, pairs_mean=-0.0005), id="smaller than the noise"),
        pytest.param(GAIN._replace(seeds=MOST_SEEDS, pairs_sd=0.0), id="pairs without any noise"),
        pytest.param(GAIN._replace(pairs_mean=0.05, candidate_mean=1.4), id="worse"),
    ],
)
def test_what_is_not_shown_is_not_kept(figures):
    pairs = UNKNOWN if not figures.pairs_sd else PAIRS

    assert answer(figures, pairs=pairs).answer != "keep"


def test_a_gain_must_be_larger_than_the_smallest_that_is_worth_keeping():
    smaller = answer(GAIN, least_gain=0.06)
    larger = answer(GAIN, least_gain=0.04)

    assert (smaller.answer, smaller.reason) == ("reject", "a smaller gain than 0.06")
    assert larger.answer == "keep"
    assert larger.p > answer(GAIN).p


@pytest.mark.parametrize("seeds", [2, 5, 8])
def test_a_gain_that_more_seeds_could_show_is_undecided(seeds):
    assert answer(GAIN._replace(seeds=seeds, pairs_mean=-0.004, candidate_mean=1.346)).answer == "undecided"
    assert answer(GAIN._replace(seeds=seeds, pairs_sd=0.0), pairs=UNKNOWN).answer == "undecided"
    no_noise = answer(GAIN._replace(seeds=MOST_SEEDS, pairs_sd=0.0), pairs=UNKNOWN)
    assert no_noise.reason == "all seeds give the same difference, so no noise is known"


def test_seeds_alone_decide_if_there_is_no_interval_over_documents():
    one_number = GAIN._replace(documents_low=None, documents_high=None)

    assert answer(one_number).reason == "better over seeds"
    assert answer(one_number._replace(seeds=MOST_SEEDS, pairs_mean=-0.0005)).answer == "reject"


@pytest.mark.parametrize(
    ("seeds", "fresh", "answer"), [(5, BETTER, "keep"), (5, WORSE, "undecided"), (12, WORSE, "reject")]
)
def test_a_change_is_kept_if_it_is_better_with_a_fresh_seed_too(seeds, fresh, answer):
    judged = judge([], PAIR, GAIN._replace(seeds=seeds), fresh)

    assert judged.decision.answer == answer
    if answer != "keep":
        assert judged.decision.reason == "not better with seed 12345, which nobody had run"


def test_a_fresh_pair_agrees_with_the_others_if_it_is_in_the_interval_that_predicts_it():
    decision = answer(GAIN)
    half = stats.t.ppf(0.995, 8) * 0.003 * math.sqrt(1 + 1 / 5)

    for difference, expected in (
        (-0.05 + 0.99 * half, True),
        (-0.05 + 1.01 * half, False),
        (-0.05 - 1.01 * half, False),
    ):
        assert agrees(decision, GAIN, Fresh(1, 1.0, 1.0 + difference)) == expected


def test_the_figures_are_those_of_the_losses():
    """The pairs are those of equal seeds; all runs of the base count for its mean."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 200, 20)

    def runs(count: int) -> list[Run]:
        return [Run(name="", seed=seed, values=rng.uniform(50, 200, 20), sizes=sizes) for seed in range(count)]

    base = runs(5)
    candidate = runs(2)

    figures = figures_of(base, candidate)

    of_base = np.array([run.score for run in base])
    of_candidate = np.array([run.score for run in candidate])
    assert (figures.seeds, figures.base_seeds) == (2, 5)
    for name, values in (("base", of_base), ("candidate", of_candidate), ("pairs", of_candidate - of_base[:2])):
        assert getattr(figures, f"{name}_mean") == pytest.approx(values.mean(), rel=1e-7, abs=1e-8)
        assert getattr(figures, f"{name}_sd") == pytest.approx(values.std(ddof=1), rel=1e-7, abs=1e-8)
    assert figures.documents_low < figures.pairs_mean < figures.documents_high


def test_pairs_that_differ_by_rounding_errors_alone_have_no_spread():
    sizes = np.arange(50, 70)
    base = [Run(name="", seed=seed, values=sizes * (1 + seed / 7), sizes=sizes) for seed in range(5)]
    candidate = [Run(name="", seed=run.seed, values=run.values - sizes / 10, sizes=sizes) for run in base]

    assert figures_of(base, candidate).pairs_sd == 0


# The table of judgements.


def kept(*pairs: str) -> list[Judgement]:
    """Return judgements of the bases and candidates of two letters, each of which is kept."""
    judgements: list[Judgement] = []
    for base, candidate in pairs:
        pair = PAIR._replace(base_tree=base, candidate_tree=candidate)
        judgements.append(judge(judgements, pair, GAIN._replace(seeds=12), BETTER))
    assert all(each.is_kept for each in judgements)
    return judgements


@pytest.fixture
def table(tmp_path, monkeypatch) -> Path:
    """A table of three judgements, the first and last of which kept their change."""
    monkeypatch.chdir(tmp_path)
    judgements = kept("ab")
    of_a_number = GAIN._replace(pairs_mean=0.001, documents_low=None, documents_high=None)
    for figures, fresh in ((of_a_number, None), (GAIN, BETTER)):
        pair = PAIR._replace(base_tree="b", candidate_tree=str(figures.pairs_mean))
        judgements.append(judge(judgements, pair, figures, fresh))
    write_judgements(judgements)
    assert repr(read_judgements()) == repr(judgements)  # 0 is not 0.0 in JSON
    return JUDGEMENTS


def test_a_subject_with_commas_quotes_and_line_separators_is_one_value(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = PAIR._replace(change='Try "wide", then\u2028narrow')

    write_judgements([judge([], pair, GAIN)])
    (read,) = read_judgements()

    assert read.pair == pair


DAMAGES = {
    "conflicts of a merge": ("\n3,", "\n<<<<<<< HEAD\n3,"),
    "another header": ("judgement,", "number,"),
    "a figure that is missing": ("1.35", ""),
    "a number that is none": ("1.35", "many"),
    "another number": ("\n3,", "\n7,"),
    "another figure": ("-0.05", "-0.3"),
    "another level": (f"{next_level([]):.8g}", "0.05"),
    "another answer": ("keep", "reject"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_table_or_a_row_that_does_not_follow_from_those_above_is_refused(table, case):
    old, new = DAMAGES[case]
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new, 1))

    with pytest.raises(Forged, match=r"judgements\.csv: line \d.*`git restore judgements.csv`"):
        read_judgements()


def test_noise_is_that_of_the_other_pairs_and_sides_of_the_text_each_counted_once():
    first = judge([], PAIR, GAIN._replace(seeds=2))
    again = judge([first], PAIR, GAIN)
    other_text = judge([], PAIR._replace(text="other", candidate_tree="x"), GAIN)
    wide = judge([first, again], PAIR._replace(candidate_tree="w"), GAIN._replace(candidate_sd=0.5))

    pairs, sides = spreads_of_others([first, again, other_text, wide], PAIR._replace(candidate_tree="e"))

    # Of both judgements of PAIR the one with five seeds counts; the base is counted by the judgement itself.
    assert pairs.degrees_of_freedom == 4
    assert pairs.variance == pytest.approx(GAIN.pairs_sd**2)
    assert sides.degrees_of_freedom == 4
    assert sides.variance == pytest.approx(GAIN.candidate_sd**2)
    assert spreads_of_others([first, again], PAIR) == (UNKNOWN, UNKNOWN)


# What raises later levels.


@pytest.mark.parametrize(
    ("pairs", "earn"),
    [
        pytest.param(["ab", "bc", "cd"], [True, True, True], id="each kept change is the next base"),
        pytest.param(["ab", "ab", "ab"], [True, False, False], id="one pair, judged again"),
        pytest.param(["ab", "ac", "cd"], [True, False, True], id="two changes to one base"),
        pytest.param(["ab", "xc", "xd"], [True, False, False], id="a base that was never kept"),
        pytest.param(["ab", "xc", "cd"], [True, False, False], id="better than a base that was never kept"),
        pytest.param(["ab", "xa", "ac"], [True, False, False], id="a base that earned, kept again"),
    ],
)
def test_each_base_of_a_night_raises_later_levels_once(pairs, earn):
    judgements = kept(*pairs)

    assert [each.earns for each in judgements] == earn
    for number, judgement in enumerate(judgements):
        assert judgement.decision.level == next_level(earn[:number])
