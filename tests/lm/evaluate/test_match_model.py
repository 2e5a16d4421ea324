"""The match model guesses what followed the last two tokens; its mixture is a distribution, of earlier tokens alone."""

import math

import numpy as np
import pytest

from lm.evaluate.match_model import LONGEST_RUN, SCALE, Guess, MatchModel, nats_with_copies

EOT = 9
VOCAB_SIZE = 10


def guesses_of(train: list[int], ids: list[int]) -> list[int | None]:
    """Return the token that is guessed before each of the ids."""
    model = MatchModel(np.array(train, np.uint16), VOCAB_SIZE, EOT)
    guessed = []
    for token in ids:
        guess = model.guess()
        guessed.append(guess.token if guess else None)
        model.append(token, 0.5)
    return guessed


def test_it_guesses_what_followed_the_last_two_tokens_in_the_document():
    #                         1 2 occur again, and 3 4 after them
    assert guesses_of([], [1, 2, 3, 4, 1, 2, 3, 4]) == [None] * 6 + [3, 4]


def test_of_several_places_it_takes_the_last_one():
    assert guesses_of([], [1, 2, 3, 1, 2, 4, 1, 2, 0])[-1] == 4
    assert guesses_of([1, 2, 3, 1, 2, 4, 0], [1, 2, 0])[-1] == 4


def test_of_a_long_training_text_it_knows_the_end(monkeypatch):
    monkeypatch.setattr("lm.evaluate.match_model.TRAIN_TOKENS", 3)

    assert guesses_of([1, 2, 3, 4, 5, 6], [1, 2, 4, 5, 6]) == [None] * 4 + [6]


def test_the_document_comes_before_the_training_text():
    assert guesses_of([1, 2, 5, 5], [1, 2, 6, 1, 2, 0]) == [None, None, 5, None, None, 6]


def test_it_follows_a_place_while_its_guesses_are_right():
    """2 7 occurred elsewhere in the text later, with another token after it."""
    train = [1, 2, 7, 8, 0, 2, 7, 5, 0]

    assert guesses_of(train, [1, 2, 7, 8]) == [None, None, 7, 8]


def test_after_a_wrong_guess_it_looks_again():
    train = [1, 2, 3, 4, 2, 5, 6, 0]

    assert guesses_of(train, [1, 2, 5, 6])[2:] == [3, 6]


def test_a_document_is_forgotten_at_its_end_and_begins_after_the_end_of_one():
    assert guesses_of([], [1, 2, 3, EOT, 1, 2, 3]) == [None] * 7
    assert guesses_of([4, EOT, 7, 8, 0], [7, 8, EOT, 7])[:2] == [None, 8]
    assert guesses_of([4, EOT, 7, 8, 6, 0], [7, EOT, 7, 8])[-1] == 8
    assert guesses_of([1, 2, 3, EOT, 5, 0], [1, 2, 3, EOT, 5]) == [None, None, 3, EOT, None]


def test_it_guesses_nothing_after_the_end_of_the_training_text():
    assert guesses_of([1, 2], [1, 2, 0]) == [None] * 3
    assert guesses_of([1, 2, 3], [1, 2, 3, 0]) == [None, None, 3, None]
    assert guesses_of([3], [3, 3, 3, 3]) == [None, None, None, 3]


def test_a_weight_is_the_mean_share_of_the_guesses_of_a_run():
    """After 1 2 it guesses 3 three times, and is right, right, wrong; after a right 3 it guesses wrong."""
    model = MatchModel(np.array([], np.uint16), VOCAB_SIZE, EOT)
    for token in [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 7, 8, 1, 2]:
        model.append(token, 0.25)

    share = 1.0
    for count in (2, 3):
        weight = int(SCALE * share / count) / SCALE
        share += weight / (weight + (1 - weight) * 0.25)
    assert model.shares[1] == pytest.approx(share)
    assert model.counts[1] == 2 + 3
    assert model.guess() == Guess(7, int(SCALE * share / 5))
    assert model.counts[2] == 2 + 2


def test_a_guess_that_the_model_shares_earns_less_weight():
    weights = []
    for probability in (0.9, 0.1):
        model = MatchModel(np.array([], np.uint16), VOCAB_SIZE, EOT)
        for token in [1, 2, 3, 1, 2, 3, 4, 1, 2]:
            model.append(token, probability)
        guess = model.guess()
        assert guess is not None
        weights.append(guess.weight)

    assert weights[0] < weights[1]


def test_runs_longer_than_the_longest_share_a_weight():
    model = MatchModel(np.array([], np.uint16), VOCAB_SIZE, EOT)
    for _ in range(LONGEST_RUN + 9):
        model.append(1, 0.5)

    assert model.run == LONGEST_RUN
    assert model.counts[LONGEST_RUN] > 2 + 1


@pytest.mark.parametrize("change", [5, 50, 299])
def test_guesses_depend_on_earlier_tokens_alone(change):
    ids = np.random.default_rng(1).integers(0, 4, 300).tolist()
    changed = [*ids[:change], ids[change] + 1, *ids[change + 1 :]]
    train = ids[100:200]

    assert guesses_of(train, ids)[: change + 1] == guesses_of(train, changed)[: change + 1]


def test_the_mixture_has_the_weight_of_the_guess():
    ids = np.array([1, 2, 1, 2, 1, 7, 1])
    nats = np.full(7, math.log(4), np.float32)

    mixed = nats_with_copies(nats, ids, MatchModel(np.array([], np.uint16), VOCAB_SIZE, EOT))

    # 1 2 occurs again; the guess of 1 is right, that of 2 after it is not.
    right = 1 / 2 * 1 / 4 + 1 / 2
    wrong = 1 / 2 * 1 / 4
    expected = [1 / 4] * 4 + [right, wrong, 1 / 4]
    np.testing.assert_allclose(np.exp(-mixed), expected, rtol=1e-6)
    assert mixed[:4].tolist() == nats[:4].tolist()


def test_a_text_that_repeats_itself_costs_next_to_nothing():
    once = np.random.default_rng(2).integers(0, 9, 200)
    nats = np.full(2000, math.log(VOCAB_SIZE), np.float32)

    mixed = nats_with_copies(nats, np.tile(once, 10), MatchModel(np.array([], np.uint16), VOCAB_SIZE, EOT))

    assert mixed[1000:].mean() < 0.1
