"""Every token is scored once, with real left context."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.model.score import positions_in_window, score_tokens, window_losses, windows_to_score
from lm.tokens.tokenfile import TokenFile


def test_windows_cover_each_token_once_with_its_context():
    for num_tokens, stride in itertools.product([1, 2, 5, 8, 9, 16, 17, 100], [8, 4, 1, 3]):
        seq_len = min(8, num_tokens)
        stride = min(stride, seq_len)

        scored = []
        for start, first in windows_to_score(num_tokens, seq_len, stride):
            assert 0 <= start <= num_tokens - seq_len
            assert first == 0 or first - start >= seq_len - stride
            scored += range(first, start + seq_len)

        assert scored == list(range(num_tokens)), (num_tokens, stride)


class CountingModel:
    """Its loss at each position is input + 1000 · target, so that a wrong pair shows; it counts the windows."""

    device = torch.device("cpu")
    num_windows = 0

    def eval(self):
        pass

    train = eval

    def token_losses(self, ids, targets):
        self.num_windows += len(ids)
        return (ids[:, -targets.shape[1] :] + 1000 * targets).float()


def stream(count: int) -> TokenFile:
    """Return a file of the ids 1 … count - 1 with the end-of-text id 99."""
    ids = np.arange(1, count, dtype=np.uint16)
    return TokenFile(Path("stream.bin"), ids, {"tokenizer": {"eot_id": 99}})


@pytest.mark.usefixtures("stub_losses")
@pytest.mark.parametrize("stride", [3, 4])
def test_each_token_is_predicted_from_the_one_before(stride):
    targets = np.arange(1, 12)
    inputs = np.array([99, *range(1, 11)])

    losses, positions = score_tokens(CountingModel(), stream(12), 4, stride, 2, torch.float32)

    assert losses.tolist() == (inputs + 1000 * targets).tolist()
    assert positions[0] == 0
    assert positions.max() == 3
    assert (positions[4:] >= 4 - stride).all()


@pytest.mark.usefixtures("stub_losses")
def test_chosen_windows_are_scored_as_among_all_and_their_first_tokens_may_be_skipped():
    non_overlapping, _ = score_tokens(CountingModel(), stream(41), 4, 4, 2, torch.float32)
    starts = np.array([0, 8, 12, 24, 36])

    for skip in (0, 3):
        losses = window_losses(CountingModel(), stream(41), starts, 4, torch.float32, skip)

        assert losses.tolist() == [non_overlapping[start + skip : start + 4].tolist() for start in starts]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([9, 1, 2, 9, 3, 4], [0, 0, 1, 2, 0, 1]),
        ([1, 9, 9, 2], [0, 1, 0, 0]),
    ],
)
def test_the_first_token_after_an_end_of_text_is_at_position_0(ids, expected):
    """When it is the target, only the end of text stands before it."""
    assert positions_in_window(np.array(ids), 9).tolist() == expected
    assert positions_in_window(np.array(ids), None).tolist() == list(range(len(ids)))


@pytest.mark.usefixtures("stub_losses")
def test_windows_without_a_wanted_token_are_left_out():
    stride = 3
    model = CountingModel()
    wanted = np.zeros(41, bool)
    wanted[[9, 10, 30]] = True

    losses, positions = score_tokens(model, stream(42), 8, stride, 3, torch.float32, wanted=wanted)

    all_losses, all_positions = score_tokens(CountingModel(), stream(42), 8, stride, 3, torch.float32)
    assert model.num_windows == 2
    assert losses[wanted].tolist() == all_losses[wanted].tolist()
    assert positions[wanted].tolist() == all_positions[wanted].tolist()
    assert np.isnan(losses).sum() == 41 - 2 * stride
