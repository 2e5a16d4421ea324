"""Batches are a function of seed and step, without replacement, and reach every window."""

import numpy as np
import pytest

from lm.errors import DataError
from lm.windows import TokenWindows, hash_of, permute


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100, 1023, 1025])
def test_the_permutation_is_one(size):
    for key in range(3):
        assert sorted(permute(np.arange(size), size, key)) == list(range(size))


def test_the_permutation_depends_on_its_key_and_looks_random():
    first, second = (permute(np.arange(1000), 1000, key) for key in (1, 2))
    assert (first == second).sum() < 10
    assert abs(np.corrcoef(np.arange(1000), first)[0, 1]) < 0.1


def test_hashes_are_the_same_on_every_machine():
    assert hash_of(1, 2, 3) == 7702586659592502839
    assert permute(np.arange(5), 5, 42).tolist() == [4, 3, 0, 1, 2]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_an_epoch_takes_each_window_once_and_targets_are_shifted_by_one(batch_size):
    windows = TokenWindows(np.arange(1000, dtype=np.uint16), 16, batch_size, seed=3)
    per_epoch = windows.windows_per_epoch(0)
    starts = np.concatenate([windows.starts(step) for step in range(-(-per_epoch // batch_size))])[:per_epoch]
    assert len(set(starts)) == per_epoch
    assert np.all(np.diff(np.sort(starts)) == 16)
    x, y = windows.batch(5)
    assert x.shape == y.shape == (batch_size, 16)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1)


def test_batch_size_does_not_change_the_order_of_windows():
    small = TokenWindows(np.arange(500), 8, 2, seed=1)
    large = TokenWindows(np.arange(500), 8, 8, seed=1)
    joined = np.concatenate([small.starts(step) for step in range(200)])
    assert np.array_equal(joined, np.concatenate([large.starts(step) for step in range(50)]))


def test_a_step_needs_no_history():
    walked, jumped = (TokenWindows(np.arange(300), 8, 4, seed=9) for _ in range(2))
    all_starts = [walked.starts(step) for step in range(100)]
    assert np.array_equal(jumped.starts(99), all_starts[99])
    assert np.array_equal(jumped.starts(3), all_starts[3])


@pytest.mark.parametrize("length", [9, 10, 15, 16, 17, 24, 25])
def test_every_position_that_can_be_a_target_is_reached_over_epochs(length):
    reached = set()
    for seed in range(4):
        windows = TokenWindows(np.arange(length), 8, 2, seed)
        for step in range(100):
            reached |= set(windows.batch(step)[1].ravel().tolist())
    assert reached == set(range(1, length))


def test_one_window_is_enough_and_less_is_refused():
    x, y = TokenWindows(np.arange(9), 8, 2, seed=0).batch(0)
    assert x.tolist() == [list(range(8))] * 2
    assert y.tolist() == [list(range(1, 9))] * 2
    with pytest.raises(DataError, match=r"8 tokens, one window of train\.seq_len 8 needs 9"):
        TokenWindows(np.arange(8), 8, 2, seed=0)
