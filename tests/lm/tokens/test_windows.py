"""Batches depend on seed and step alone, take every window once an epoch, and reach every position."""

from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.tokens.windows import TokenWindows, model_selection_starts, shuffled
from lm.train.step import prefetch
from support.properties import check_examples

SEEDS = st.integers(0, 2**63 - 1)


def windows_of(num_tokens: int, seq_len: int, batch_size: int, seed: int) -> TokenWindows:
    """Return windows of the ids 0, 1, 2, …, so that an id is its position."""
    ids = np.arange(num_tokens, dtype=np.uint32)
    return TokenWindows(ids, min(seq_len, num_tokens - 1), batch_size, seed)


# Which windows, and in which order


@check_examples
@given(
    num_tokens=st.integers(2, 600),
    seq_len=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    seed=SEEDS,
)
def test_two_epochs_take_every_window_once_each(num_tokens, seq_len, batch_size, seed):
    windows = windows_of(num_tokens, seq_len, batch_size, seed)
    seq_len = windows.seq_len
    first_size = windows.windows_per_epoch(0)
    both_sizes = first_size + windows.windows_per_epoch(1)
    num_steps = -(-both_sizes // batch_size)

    starts = np.concatenate([windows.starts(step) for step in range(num_steps)])

    first_epoch = starts[:first_size]
    second_epoch = starts[first_size:both_sizes]
    for epoch in (first_epoch, second_epoch):
        in_order = np.sort(epoch)
        assert np.all(np.diff(in_order) == seq_len)
        assert 0 <= in_order[0] < seq_len
        last_target = in_order[-1] + seq_len
        assert last_target < num_tokens
        assert last_target + seq_len >= num_tokens, "no window is left out at the end"


def offsets_of_epochs(seed: int) -> list[int]:
    """Return where the windows of 16 tokens begin, modulo 16, in each of 200 epochs."""
    windows = windows_of(1000, 16, 1, seed)
    offsets = []
    step = 0
    for epoch in range(200):
        first = windows.starts(step)[0]
        offsets.append(int(first) % 16)
        step += windows.windows_per_epoch(epoch)
    return offsets


def test_over_the_epochs_a_window_begins_at_every_position():
    one = offsets_of_epochs(seed=5)
    other = offsets_of_epochs(seed=6)

    assert set(one) == set(range(16)), "one offset would be missed with a probability of 4e-5"
    assert np.mean(np.equal(one, other)) < 0.2, "1 in 16 are equal by chance"


def test_the_order_is_that_of_the_pinned_numpy():
    assert shuffled(6, 42, 0).tolist() == [2, 1, 3, 5, 0, 4]
    assert shuffled(6, 42, 1).tolist() == [3, 5, 4, 0, 2, 1]
    assert shuffled(6, 42 + 2**32, 0).tolist() != shuffled(6, 42, 0).tolist()
    assert np.array_equal(np.sort(shuffled(70_000, 1, 0)), np.arange(70_000)), "more than 16 bits hold"


def test_steps_in_any_order_read_the_same_windows():
    """An epoch is at most 3 steps."""
    windows = windows_of(100, 8, 5, seed=2)

    for step in [*range(30), *reversed(range(30))]:
        of_a_new_process = windows_of(100, 8, 5, seed=2)
        assert np.array_equal(windows.starts(step), of_a_new_process.starts(step))


# What is read


def test_prefetch_reads_one_step_ahead(monkeypatch):
    windows = windows_of(500, 8, 4, seed=1)
    expected = [windows.batch(step) for step in range(3, 7)]
    buffer = Mock(wraps=windows.buffer)
    monkeypatch.setattr(windows, "buffer", buffer)
    batches = prefetch(windows, range(3, 7), "cpu")

    first = next(batches)

    assert buffer.call_count == 2
    for (x, y), (expected_x, expected_y) in zip([first, *batches], expected, strict=True):
        assert np.array_equal(x, expected_x)
        assert np.array_equal(y, expected_y)


# When a document is read


def walk(windows: TokenWindows, begin: int, end: int, num_steps: int) -> dict[int, list]:
    """Return by epoch the first target and the place of each window that reads tokens begin … end - 1, in order."""
    readings: dict[int, list] = {}
    for step in range(num_steps):
        _, y = windows.batch(step)
        for row in range(windows.batch_size):
            targets = [token for token in y[row].tolist() if begin < token < end]
            if targets:
                epoch = windows.epoch_of(step * windows.batch_size + row)
                readings.setdefault(epoch, []).append((targets[0], (step, row)))
    return {epoch: sorted(own) for epoch, own in readings.items()}


@check_examples
@given(
    num_tokens=st.integers(2, 300),
    seq_len=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    seed=SEEDS,
    data=st.data(),
)
def test_readings_are_those_of_a_walk_through_all_steps(num_tokens, seq_len, batch_size, seed, data):
    windows = windows_of(num_tokens, seq_len, batch_size, seed)
    begin = data.draw(st.integers(0, num_tokens - 2))
    end = data.draw(st.integers(begin + 2, num_tokens))
    steps_per_epoch = -(-windows.windows_per_epoch() // batch_size)
    num_steps = data.draw(st.integers(1, 2 * steps_per_epoch))

    readings = windows.readings(begin, end, num_steps)

    walked = walk(windows, begin, end, num_steps)
    assert walked.keys() <= {epoch for epoch, _, _ in readings}
    for epoch, places, num_windows in readings:
        assert places == [place for _, place in walked.get(epoch, [])]
        offset = windows._offset(epoch)
        windows_of_inputs = {(token - offset) // windows.seq_len for token in range(begin, end - 1)}
        assert num_windows == len(windows_of_inputs)


# Windows that select the best model


@pytest.mark.parametrize(
    ("num_tokens", "num_selected", "expected"),
    [
        (100, 1000, list(range(0, 100, 10))),  # at most the whole windows of the file
        (100, 40, [10, 30, 60, 80]),
        (105, 1, [50]),  # at least one
        (7, 30, [0]),  # shorter than a window: the caller shortens the window
    ],
)
def test_selected_windows_at_the_limits(num_tokens, num_selected, expected):
    starts = model_selection_starts(num_tokens, num_selected, 10)

    assert starts.tolist() == expected
