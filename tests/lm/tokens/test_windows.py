"""Batches depend on seed and step alone, take every window once an epoch, and reach every position."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.core.errors import DataError
from lm.tokens.windows import TokenWindows, model_selection_starts, read_windows, shuffled
from lm.train.step import prefetch, to_device
from support.properties import check_examples

SEEDS = st.integers(0, 2**63 - 1)


@check_examples
@given(num_tokens=st.integers(2, 600), seq_len=st.integers(1, 40), batch_size=st.integers(1, 7), seed=SEEDS)
def test_two_epochs_take_every_window_once_each(num_tokens, seq_len, batch_size, seed):
    seq_len = min(seq_len, num_tokens - 1)
    windows = TokenWindows(np.arange(num_tokens, dtype=np.uint32), seq_len, batch_size, seed)
    sizes = [windows.windows_per_epoch(epoch) for epoch in (0, 1)]
    steps = -(-sum(sizes) // batch_size)
    starts = np.concatenate([windows.starts(step) for step in range(steps)])
    for epoch_starts in (starts[: sizes[0]], starts[sizes[0] : sum(sizes)]):
        in_order = np.sort(epoch_starts)
        assert np.all(np.diff(in_order) == seq_len)
        assert 0 <= in_order[0] < seq_len and in_order[-1] + seq_len < num_tokens
        assert in_order[-1] + 2 * seq_len >= num_tokens, "no window is left out at the end"


@pytest.mark.parametrize("length", [9, 16, 17, 25])
def test_every_position_is_a_target_in_some_epoch(length):
    reached = set()
    for seed in range(4):
        windows = TokenWindows(np.arange(length), 8, 2, seed)
        for step in range(100):
            reached |= set(windows.batch(step)[1].ravel().tolist())
    assert reached == set(range(1, length))


def test_over_the_epochs_a_window_begins_at_every_position():
    """Each seed has offsets of its own."""
    begins = {}
    for seed in (5, 6):
        windows = TokenWindows(np.arange(1000), 16, 1, seed)
        begins[seed] = []
        number = 0
        for epoch in range(200):
            begins[seed].append(windows.starts(number)[0] % 16)
            number += windows.windows_per_epoch(epoch)
        assert set(begins[seed]) == set(range(16)), "one offset in 16 would be missed with a probability of 4e-5"
    assert np.mean(np.equal(*begins.values())) < 0.2, "1 in 16 are equal by chance"


def test_the_order_is_random_and_differs_by_epoch_and_seed():
    """Windows of one token, 999 an epoch, have the same offset in every epoch."""
    orders = []
    for seed in (1, 2, 2**32 + 1):
        starts = TokenWindows(np.arange(1000), 1, 999, seed)
        orders += [starts.starts(step) for step in range(3)]
    for i, order in enumerate(orders):
        assert np.mean(np.diff(order) == 1) < 0.01, "two neighbours follow each other by chance, 1 in 1,000"
        assert all(np.mean(order == other) < 0.01 for other in orders[:i])


def test_the_order_is_that_of_the_pinned_numpy():
    assert np.array_equal(np.sort(shuffled(70_000, 1, 0)), np.arange(70_000))
    assert shuffled(6, 42, 0).tolist() == [2, 1, 3, 5, 0, 4]
    assert shuffled(6, 42, 1).tolist() == [3, 5, 4, 0, 2, 1]


def test_steps_in_any_order_read_the_same_windows():
    windows = TokenWindows(np.arange(100), 8, 5, seed=2)  # an epoch is at most 3 steps
    for step in np.random.default_rng(0).permutation(30).tolist():
        assert np.array_equal(windows.starts(step), TokenWindows(np.arange(100), 8, 5, seed=2).starts(step))


def test_each_epoch_is_shuffled_once():
    windows = TokenWindows(np.arange(16_001), 16, 7, seed=1)
    before = shuffled.cache_info().misses
    for step in range(280):  # of 143 in an epoch; a batch holds windows of both
        windows.starts(step)
        windows.starts(max(0, step - 1))
    assert shuffled.cache_info().misses == before + 2


def test_targets_are_the_inputs_shifted_by_one():
    x, y = TokenWindows(np.arange(1000, dtype=np.uint16), 16, 3, seed=3).batch(5)
    assert x.shape == y.shape == (3, 16)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1)


def test_a_file_of_one_window_is_enough():
    x, y = TokenWindows(np.arange(9), 8, 2, seed=0).batch(0)
    assert x.tolist() == [list(range(8))] * 2
    assert y.tolist() == [list(range(1, 9))] * 2
    with pytest.raises(DataError, match=r"8 tokens, one window of train\.seq_len 8 needs 9"):
        TokenWindows(np.arange(8), 8, 2, seed=0)


@pytest.mark.parametrize("ids", [np.arange(60)[::3], np.arange(20, dtype=">u2"), np.arange(20, dtype=np.uint32)])
def test_windows_are_read_from_any_array_of_integers(ids):
    buffer = read_windows(ids, np.array([0, 16, 3]), 4)
    assert buffer.dtype == np.int64 and buffer.flags.c_contiguous and buffer.flags.writeable
    assert buffer.tolist() == [ids[start : start + 4].tolist() for start in (0, 16, 3)]
    with pytest.raises(IndexError):
        read_windows(ids, np.array([17]), 4)


def test_prefetch_reads_one_step_ahead(monkeypatch):
    windows = TokenWindows(np.arange(500), 8, 4, seed=1)
    read = []
    buffer = windows.buffer

    def recording_buffer(step):
        read.append(step)
        return buffer(step)

    monkeypatch.setattr(windows, "buffer", recording_buffer)
    for step, (x, y) in zip(range(3, 7), prefetch(windows, range(3, 7), "cpu"), strict=True):
        assert read == list(range(3, min(step + 2, 7)))
        assert x.dtype == y.dtype == torch.int64
        for tensor, wanted in zip((x, y), windows.batch(step), strict=True):
            assert np.array_equal(tensor.numpy(), wanted)
        read[:] = range(3, min(step + 2, 7))  # without the read of this test
    assert list(prefetch(windows, [], "cpu")) == []


def test_inputs_and_targets_on_a_device_share_one_buffer():
    for device in ("cpu", "meta"):
        x, y = to_device(np.arange(10).reshape(2, 5), device)
        assert x.shape == y.shape == (2, 4) and x.device.type == y.device.type == device
        assert y.stride() == (5, 1)


@check_examples
@given(st.integers(2, 300), st.integers(1, 40), st.integers(1, 7), SEEDS, st.data())
def test_readings_are_those_of_a_walk_through_all_steps(num_tokens, seq_len, batch_size, seed, data):
    seq_len = min(seq_len, num_tokens - 1)
    windows = TokenWindows(np.arange(num_tokens, dtype=np.uint32), seq_len, batch_size, seed)
    begin = data.draw(st.integers(0, num_tokens - 2))
    end = data.draw(st.integers(begin + 2, num_tokens))
    num_steps = data.draw(st.integers(1, 2 * -(-windows.windows_per_epoch() // batch_size)))  # two epochs
    walked: dict[int, list] = {}
    for number in range(num_steps * batch_size):
        step, row = divmod(number, batch_size)
        x, y = (each[row] for each in windows.batch(step))
        if targets := [token for token in y.tolist() if begin < token < end]:
            epoch = windows.epoch_of(number)
            walked.setdefault(epoch, []).append((targets[0], (step, row), begin in x and end - 1 in y))
    for epoch, places, num_windows in windows.readings(begin, end, num_steps):
        expected = sorted(walked.pop(epoch, []))
        assert places == [place for _, place, _ in expected]
        assert (num_windows == 1 and len(places) == 1) == any(is_whole for *_, is_whole in expected)
    assert walked == {}


@pytest.mark.parametrize(
    ("num_tokens", "num_selected", "expected"),
    [
        (100, 1000, list(range(0, 100, 10))),  # at most the whole windows of the file
        (105, 50, [10, 30, 50, 70, 90]),
        (105, 1, [50]),  # at least one
        (19, 30, [0]),
        (10, 30, [0]),
        (7, 30, [0]),  # shorter than a window: the caller shortens the window
    ],
)
def test_selected_windows_at_the_limits(num_tokens, num_selected, expected):
    assert model_selection_starts(num_tokens, num_selected, 10).tolist() == expected


@check_examples
@given(num_tokens=st.integers(1, 100_000), num_selected=st.integers(1, 100_000), seq_len=st.integers(1, 600))
def test_selected_windows_are_evenly_spread(num_tokens, num_selected, seq_len):
    starts = model_selection_starts(num_tokens, num_selected, seq_len)
    num_windows = max(1, num_tokens // seq_len)
    assert len(starts) == min(num_windows, max(1, num_selected // seq_len))
    assert np.all(starts % seq_len == 0)
    numbers = starts // seq_len
    assert numbers[0] >= 0 and numbers[-1] < num_windows
    gaps = np.diff(numbers)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    # As much of the stream is before the first window as after the last one, up to one gap.
    assert abs(numbers[0] - (num_windows - 1 - numbers[-1])) <= num_windows / len(starts)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux what it was advised")
@pytest.mark.parametrize(("memory_bytes", "is_larger"), [(1 << 40, False), (1000, True)])
def test_files_larger_than_memory_are_read_at_random(tmp_path, monkeypatch, memory_bytes, is_larger):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=memory_bytes))
    path = tmp_path / "x.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    windows = TokenWindows(np.memmap(path, np.uint16, "r"), 8, 2, seed=1)
    maps = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    advised = ["rr" in re.search(r"VmFlags:(.*)", m)[1].split() for m in maps if str(path) in m]
    assert any(advised) == is_larger
    assert np.array_equal(windows.ids, np.arange(1000))
