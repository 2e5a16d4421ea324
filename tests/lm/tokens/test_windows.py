"""Batches depend on seed and step alone, take every window once an epoch, and reach every position."""

import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import DataError
from lm.tokens.windows import TokenWindows, model_selection_starts, read_windows, shuffled
from lm.train.step import prefetch, to_device
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


@pytest.mark.parametrize("num_tokens", [9, 16, 17, 25])
def test_every_position_is_a_target_in_some_epoch(num_tokens):
    targets = set()

    for seed in range(4):
        windows = windows_of(num_tokens, 8, 2, seed)
        for step in range(100):
            _, y = windows.batch(step)
            targets |= set(y.ravel().tolist())

    assert targets == set(range(1, num_tokens))


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


def test_the_order_is_random_and_differs_by_epoch_and_seed():
    """Windows of one token, 999 an epoch, have the same offset in every epoch."""
    orders = []
    for seed in (1, 2, 2**32 + 1):
        windows = windows_of(1000, 1, 999, seed)
        orders += [windows.starts(epoch) for epoch in range(3)]

    for order in orders:
        assert np.mean(np.diff(order) == 1) < 0.01, "two neighbours follow each other by chance, 1 in 1,000"
    for one, other in itertools.combinations(orders, 2):
        assert np.mean(one == other) < 0.01


def test_the_order_is_that_of_the_pinned_numpy():
    assert shuffled(6, 42, 0).tolist() == [2, 1, 3, 5, 0, 4]
    assert shuffled(6, 42, 1).tolist() == [3, 5, 4, 0, 2, 1]
    assert np.array_equal(np.sort(shuffled(70_000, 1, 0)), np.arange(70_000)), "more than 16 bits hold"


def test_steps_in_any_order_read_the_same_windows():
    in_order = windows_of(100, 8, 5, seed=2)  # an epoch is at most 3 steps
    expected = [in_order.starts(step) for step in range(30)]
    windows = windows_of(100, 8, 5, seed=2)

    for step in np.random.default_rng(0).permutation(30).tolist():
        assert np.array_equal(windows.starts(step), expected[step])


def test_each_epoch_is_shuffled_once():
    windows = windows_of(16_001, 16, 7, seed=1)
    before = shuffled.cache_info().misses

    for step in range(280):  # of 143 in an epoch; a batch holds windows of both
        windows.starts(step)
        windows.starts(max(0, step - 1))

    assert shuffled.cache_info().misses == before + 2


# What is read


def test_targets_are_the_inputs_shifted_by_one():
    ids = np.arange(1000, dtype=np.uint16)

    x, y = TokenWindows(ids, 16, 3, seed=3).batch(5)

    assert x.shape == y.shape == (3, 16)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1)


def test_a_file_of_one_window_is_enough():
    x, y = windows_of(9, 8, 2, seed=0).batch(0)

    assert x.tolist() == [list(range(8))] * 2
    assert y.tolist() == [list(range(1, 9))] * 2


def test_a_file_shorter_than_a_window_and_its_last_target_is_refused():
    with pytest.raises(DataError, match=r"8 tokens.*train\.seq_len 8 needs 9"):
        TokenWindows(np.arange(8), 8, 2, seed=0)


@pytest.mark.parametrize("ids", [np.arange(60)[::3], np.arange(20, dtype=">u2"), np.arange(20, dtype=np.uint32)])
def test_windows_are_read_from_any_array_of_integers(ids):
    starts = np.array([0, 16, 3])

    buffer = read_windows(ids, starts, 4)

    assert buffer.tolist() == [ids[start : start + 4].tolist() for start in starts]
    assert buffer.dtype == np.int64
    assert buffer.flags.c_contiguous
    assert buffer.flags.writeable
    with pytest.raises(IndexError):
        read_windows(ids, np.array([17]), 4)


def test_prefetch_reads_one_step_ahead(monkeypatch):
    windows = windows_of(500, 8, 4, seed=1)
    read = []
    buffer = windows.buffer

    def recording_buffer(step):
        read.append(step)
        return buffer(step)

    monkeypatch.setattr(windows, "buffer", recording_buffer)

    batches = prefetch(windows, range(3, 7), "cpu")
    for step, expected_read in ((3, [3, 4]), (4, [3, 4, 5]), (5, [3, 4, 5, 6]), (6, [3, 4, 5, 6])):
        x, y = next(batches)
        assert read == expected_read
        expected_x, expected_y = windows_of(500, 8, 4, seed=1).batch(step)
        assert np.array_equal(x.numpy(), expected_x)
        assert np.array_equal(y.numpy(), expected_y)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_inputs_and_targets_on_a_device_share_one_buffer(device):
    buffer = np.arange(10).reshape(2, 5)

    x, y = to_device(buffer, device)

    assert x.shape == y.shape == (2, 4)
    assert x.device.type == y.device.type == device
    assert x.stride() == y.stride() == (5, 1)


# When a document is read


class Reading(NamedTuple):
    """A window that reads tokens of a document."""

    first_target: int
    place: tuple[int, int]  # step and row
    is_whole: bool  # it reads the whole document


def walk(windows: TokenWindows, begin: int, end: int, num_steps: int) -> dict[int, list[Reading]]:
    """Return by epoch, in the order of the tokens, the windows that read tokens begin … end - 1."""
    readings: dict[int, list[Reading]] = {}
    for step in range(num_steps):
        x, y = windows.batch(step)
        for row in range(windows.batch_size):
            targets = [token for token in y[row].tolist() if begin < token < end]
            if not targets:
                continue
            is_whole = begin in x[row] and end - 1 in y[row]
            epoch = windows.epoch_of(step * windows.batch_size + row)
            readings.setdefault(epoch, []).append(Reading(targets[0], (step, row), is_whole))
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
        expected = walked.get(epoch, [])
        assert places == [reading.place for reading in expected]
        is_one_window = num_windows == len(places) == 1
        assert is_one_window == any(reading.is_whole for reading in expected)


# Windows that select the best model


@pytest.mark.parametrize(
    ("num_tokens", "num_selected", "expected"),
    [
        (100, 1000, list(range(0, 100, 10))),  # at most the whole windows of the file
        (105, 50, [10, 30, 50, 70, 90]),
        (100, 40, [10, 30, 60, 80]),
        (105, 1, [50]),  # at least one
        (19, 30, [0]),
        (10, 30, [0]),
        (7, 30, [0]),  # shorter than a window: the caller shortens the window
    ],
)
def test_selected_windows_at_the_limits(num_tokens, num_selected, expected):
    starts = model_selection_starts(num_tokens, num_selected, 10)

    assert starts.tolist() == expected


# How a large file is mapped


def flags_of_maps(path: Path) -> list[list[str]]:
    """Return the flags with which Linux maps a file into this process, of each map."""
    maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    flags = []
    for each in maps:
        if str(path) in each:
            line = re.search(r"VmFlags:(.*)", each)
            flags.append(line[1].split())
    return flags


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what it was advised")
@pytest.mark.parametrize(("memory_bytes", "is_larger"), [(1 << 40, False), (1000, True)])
def test_files_larger_than_memory_are_read_at_random(tmp_path, monkeypatch, memory_bytes, is_larger):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory_bytes))
    path = tmp_path / "x.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)

    windows = TokenWindows(np.memmap(path, np.uint16, "r"), 8, 2, seed=1)

    is_random = ["rr" in flags for flags in flags_of_maps(path)]
    assert any(is_random) == is_larger
    assert np.array_equal(windows.ids, np.arange(1000))
