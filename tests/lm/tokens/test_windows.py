"""Batches depend on seed and step alone, draw without replacement and reach every window."""

import hashlib
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
from lm.tokens.windows import (
    TokenWindows,
    _longest_counted,
    hash_integers,
    model_selection_starts,
    permute,
    read_windows,
)
from lm.train.step import prefetch, to_device
from support.properties import check_examples


def test_neighbours_part():
    """With fewer rounds, a cell keeps its neighbour more often than by chance, which is 1 in 1,000."""
    orders = [permute(np.arange(1000), 1000, key) for key in range(50)]
    assert np.mean([np.diff(order) == 1 for order in orders]) < 0.004


def test_hashes_are_the_same_on_every_machine():
    assert hash_integers(1, 2, 3) == 7702586659592502839
    assert permute(np.arange(5), 5, 42).tolist() == [1, 0, 4, 2, 3]


def test_targets_are_the_inputs_shifted_by_one():
    x, y = TokenWindows(np.arange(1000, dtype=np.uint16), 16, 3, seed=3).batch(5)
    assert x.shape == y.shape == (3, 16)
    assert x.dtype == y.dtype == np.int64
    assert np.array_equal(y, x + 1)


@pytest.mark.parametrize("length", [9, 16, 17, 25])
def test_every_position_is_a_target_in_some_epoch(length):
    reached = set()
    for seed in range(4):
        windows = TokenWindows(np.arange(length), 8, 2, seed)
        for step in range(100):
            reached |= set(windows.batch(step)[1].ravel().tolist())
    assert reached == set(range(1, length))


def test_a_file_of_one_window_is_enough():
    x, y = TokenWindows(np.arange(9), 8, 2, seed=0).batch(0)
    assert x.tolist() == [list(range(8))] * 2
    assert y.tolist() == [list(range(1, 9))] * 2
    with pytest.raises(DataError, match=r"8 tokens, one window of train\.seq_len 8 needs 9"):
        TokenWindows(np.arange(8), 8, 2, seed=0)


def test_the_order_of_windows_is_the_committed_one():
    files = ((100_000, 64, 8, 1), (1000, 16, 5, 2**40), (9, 8, 2, 0))
    all_windows = [TokenWindows(np.arange(length), seq_len, size, seed) for length, seq_len, size, seed in files]
    starts = [windows.starts(step) for windows in all_windows for step in range(600)]
    digest = hashlib.sha256(np.concatenate(starts).astype("<i8").tobytes()).hexdigest()
    assert digest == "2b99ae77cbe1f6b2bf0f0749464bc8b1f94dc0ced1f9d71825e10151d98a5f1f"


def test_steps_in_any_order_read_the_same_windows(monkeypatch):
    """Starts are computed a block of steps at a time; here a block is shorter than an epoch."""
    monkeypatch.setattr("lm.tokens.windows._BLOCK_WINDOWS", 12)
    short = TokenWindows(np.arange(500), 8, 5, seed=2)
    monkeypatch.undo()
    long = TokenWindows(np.arange(500), 8, 5, seed=2)
    for step in np.random.default_rng(0).permutation(60):
        assert np.array_equal(short.starts(step), long.starts(step))


@pytest.mark.parametrize("ids", [np.arange(60)[::3], np.arange(20, dtype=">u2"), np.arange(20, dtype=np.uint32)])
def test_windows_are_read_from_any_array_of_integers(ids):
    buffer = read_windows(ids, np.array([0, 16, 3]), 4)
    assert buffer.dtype == np.int64 and buffer.flags.c_contiguous and buffer.flags.writeable
    assert buffer.tolist() == [ids[start : start + 4].tolist() for start in (0, 16, 3)]
    with pytest.raises(IndexError):
        read_windows(ids, np.array([17]), 4)


def test_prefetch_reads_one_step_ahead(monkeypatch):
    windows, read = TokenWindows(np.arange(500), 8, 4, seed=1), []
    buffer = windows.buffer
    monkeypatch.setattr(windows, "buffer", lambda step: read.append(step) or buffer(step))
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


def spans_of(lengths):
    """Return the spans (D, 2) of adjacent documents."""
    ends = np.cumsum(lengths)
    return np.column_stack([ends - lengths, ends])


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
    assert model_selection_starts(num_tokens, num_selected, 10, spans_of([num_tokens])).tolist() == expected


def fractions_of(lengths, num_selected, seq_len):
    """Return the fraction (D,) of the model-selection tokens that each document holds; no token is selected twice."""
    starts = model_selection_starts(sum(lengths), num_selected, seq_len, spans_of(lengths))
    assert len(starts) == num_selected // seq_len and len(set(starts)) == len(starts)
    held = np.repeat(np.arange(len(lengths)), lengths)[starts[:, None] + np.arange(seq_len)]
    return np.bincount(held.ravel(), minlength=len(lengths)) / held.size


def test_no_document_holds_many_selection_tokens():
    lengths = np.random.default_rng(1).permutation([26_000, 16_000, 9_000, *[1_300] * 93])  # 15 % in one document
    fractions = fractions_of(lengths, 32_768, 128)
    assert fractions.max() < 0.035 and fractions[lengths > 1_300].min() > 0.025
    # The others keep their proportions, up to a window.
    assert np.abs(fractions[lengths == 1_300] - fractions[lengths == 1_300].mean()).max() < 1.5 * 128 / 32_768


@pytest.mark.parametrize(
    ("lengths", "num_selected", "most"),
    [
        ([90_000, *[1_000] * 19], 6_400, 0.10),  # few documents: twice an equal part, and a window
        ([90_000, 1_000], 6_400, 1.0),  # of two documents: no limit
        ([90_000, *[100] * 99], 64_000, 0.86),  # the others have too few tokens: all of them are taken
    ],
)
def test_few_documents_have_a_higher_limit(lengths, num_selected, most):
    assert most - 0.02 < fractions_of(lengths, num_selected, 100).max() <= most


def test_tokens_after_the_last_document_count_as_a_document():
    starts = model_selection_starts(10_000, 1_000, 100, spans_of([2_000, 3_000]))
    assert np.histogram(starts, 2, (0, 10_000))[0].tolist() == [5, 5]


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


# Properties.


KEYS = st.integers(0, 2**64 - 1)


@check_examples
@given(size=st.integers(1, 5000), key=KEYS)
def test_a_permutation_is_a_bijection(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@check_examples
@given(size=st.integers(1, 2**40), key=KEYS, data=st.data())
def test_a_permutation_of_any_size_is_one_to_one(size, key, data):
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True)))
    sent = permute(index, size, key)
    assert sent.min() >= 0 and sent.max() < size and len(set(sent.tolist())) == len(index)


@check_examples
@given(
    num_tokens=st.integers(2, 600), seq_len=st.integers(1, 40), batch_size=st.integers(1, 7),
    seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
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


@check_examples
@given(
    num_tokens=st.integers(2, 300), seq_len=st.integers(1, 40), batch_size=st.integers(1, 7), data=st.data(),
    seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
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
    ("lengths", "num_selected", "expected"),
    [
        ([10, 10, 1000], 1, 40),  # 40 of 60 counted tokens, as there are few documents: 2 / 3
        ([10, 10, 1000], 60, 40),
        ([10, 10, 1000], 61, 41),  # as many as are selected must count
        ([10, 10, 1000], 100, 80),
        ([10, 10, 1000], 5000, 1000),
        ([100] * 99 + [1000], 1, 306),  # 306 of 10,206 are 3 %
        ([100] * 99 + [300], 1, 300),
        ([7], 3, 7),
    ],
)
def test_a_long_document_counts_as_its_share_or_as_much_as_is_selected(lengths, num_selected, expected):
    assert _longest_counted(np.array(lengths), num_selected) == expected


@check_examples
@given(num_tokens=st.integers(1, 100_000), num_selected=st.integers(1, 100_000), seq_len=st.integers(1, 600))
def test_selected_windows_are_evenly_spread(num_tokens, num_selected, seq_len):
    starts = model_selection_starts(num_tokens, num_selected, seq_len, np.array([[0, num_tokens]]))
    num_windows = max(1, num_tokens // seq_len)
    assert len(starts) == min(num_windows, max(1, num_selected // seq_len))
    assert np.all(starts % seq_len == 0)
    numbers = starts // seq_len
    assert numbers[0] >= 0 and numbers[-1] < num_windows
    gaps = np.diff(numbers)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    # As much of the stream is before the first window as after the last one, up to one gap.
    assert abs(numbers[0] - (num_windows - 1 - numbers[-1])) <= num_windows / len(starts)


@check_examples
@given(
    lengths=st.lists(st.one_of(st.integers(1, 50), st.integers(1, 5_000)), min_size=1, max_size=60),
    num_selected=st.integers(1, 20_000),
    seq_len=st.integers(1, 100),
)
def test_selected_windows_are_different_ones(lengths, num_selected, seq_len):
    ends = np.cumsum(lengths)
    starts = model_selection_starts(int(ends[-1]), num_selected, seq_len, np.column_stack([ends - lengths, ends]))
    num_windows = max(1, ends[-1] // seq_len)
    assert len(starts) == min(num_windows, max(1, num_selected // seq_len))
    assert np.all(starts % seq_len == 0) and np.all(np.diff(starts) > 0)
    assert starts[0] >= 0 and starts[-1] < num_windows * seq_len
