"""What holds for any size, key, cut and dtype: permutations, windows, selection and token files."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lm.tokens.tokenfile import DTYPES, open_tokens, write_tokens
from lm.tokens.windows import TokenWindows, permute, selection_starts
from support.properties import check_examples

KEYS = st.integers(0, 2**64 - 1)


@check_examples
@given(size=st.integers(1, 5000), key=KEYS)
def test_a_permutation_is_a_bijection(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@check_examples
@given(size=st.integers(1, 2**40), key=KEYS, data=st.data())
def test_a_permutation_of_any_size_stays_inside_and_sends_no_two_to_one_place(size, key, data):
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
@given(num_tokens=st.integers(1, 100_000), num_selected=st.integers(1, 100_000), seq_len=st.integers(1, 600))
def test_selected_windows_are_inside_aligned_and_evenly_spread(num_tokens, num_selected, seq_len):
    starts = selection_starts(num_tokens, num_selected, seq_len, np.array([[0, num_tokens]]))
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
def test_selected_windows_are_different_ones_whatever_the_documents(lengths, num_selected, seq_len):
    ends = np.cumsum(lengths)
    starts = selection_starts(int(ends[-1]), num_selected, seq_len, np.column_stack([ends - lengths, ends]))
    num_windows = max(1, ends[-1] // seq_len)
    assert len(starts) == min(num_windows, max(1, num_selected // seq_len))
    assert np.all(starts % seq_len == 0) and np.all(np.diff(starts) > 0)
    assert starts[0] >= 0 and starts[-1] < num_windows * seq_len


@check_examples
@given(dtype=st.sampled_from(sorted(DTYPES)), data=st.data())
def test_a_token_file_holds_the_ids_that_were_written(dtype, data):
    largest = np.iinfo(DTYPES[dtype]).max
    chunks = data.draw(st.lists(st.lists(st.integers(0, largest), max_size=20), min_size=1, max_size=5))
    ids = np.array(list(itertools.chain(*chunks)), DTYPES[dtype])
    if not len(ids):
        return
    tokenizer = {"vocab_size": int(largest) + 1, "eot_id": 0, "sha256": "0" * 64}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.bin"
        parts = [np.array(chunk, DTYPES[dtype]) for chunk in chunks]
        meta = write_tokens(path, parts, dtype, lambda: {"tokenizer": tokenizer})
        assert path.read_bytes() == ids.astype(DTYPES[dtype]).tobytes()
        tokens = open_tokens(path)
        assert tokens.meta == meta and meta["tokens"] == len(ids)
        assert np.array_equal(tokens.ids, ids)
