"""Sums over documents: which tokens selected the model, sections, sources of a mixture."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evidence.intervals import ratio_interval
from lm.evaluate.documents import (
    make_details,
    mark_spread_windows,
    source_of_documents,
    sum_by_document,
    summarize,
    summarize_sections,
)
from lm.tokens.tokenfile import TokenFile
from lm.train.state import TrainingState
from lm.train.step import validation_loss

LN2 = math.log(2)
EOT = 9
DOCUMENTS = [
    [1, 2, 3, EOT],
    [1, 2, EOT],
    [EOT],
    [3, 3, 3, EOT],
]
IDS = np.concatenate(DOCUMENTS).astype(np.uint16)
TOKEN_BYTES = np.array([0, 1, 2, 3, 0, 0, 0, 0, 0, 0])
UTF8_BYTES = [6, 3, 0, 9]
NONE_SELECTED = np.zeros(len(IDS), bool)
# The last two tokens of the first document, and the first two of the second.
SELECTED = np.isin(np.arange(len(IDS)), [2, 3, 4, 5])


@pytest.fixture
def validation() -> TokenFile:
    meta = {"tokenizer": {"eot_id": EOT, "vocab_size": 10}}
    return TokenFile(Path("validation.bin"), IDS, meta)


def documents_of(validation: TokenFile, selected: np.ndarray, utf8_bytes=UTF8_BYTES) -> dict[str, np.ndarray]:
    """Return the columns of documents whose tokens have the losses 1, 2, 3, …"""
    losses = np.arange(1, len(IDS) + 1, dtype=np.float32)
    documents = sum_by_document(losses, selected, TOKEN_BYTES[IDS], validation.spans, np.array(utf8_bytes))
    documents["contaminated_fraction"] = np.array([0.0, 1.0, 0.0, 0.2])
    return documents


class RecordingModel:
    """A model of losses of zero that keeps the windows (T,) that it scored."""

    device = torch.device("cpu")

    def __init__(self):
        self.scored = []

    def eval(self):
        pass

    train = eval

    def token_losses(self, ids, targets):
        self.scored += list(targets.numpy())
        return torch.zeros(targets.shape)


@pytest.mark.usefixtures("stub_losses")
@pytest.mark.parametrize(
    ("num_tokens", "eval_tokens", "seq_len"),
    [
        pytest.param(2000, 400, 10, id="some"),
        pytest.param(950, 10000, 10, id="all"),
    ],
)
def test_the_marked_tokens_are_those_that_training_validates_on(num_tokens, eval_tokens, seq_len):
    ids = np.arange(num_tokens, dtype=np.uint16)
    tokens = TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": 0}})
    model = RecordingModel()
    params = SimpleNamespace(eval_tokens=eval_tokens, seq_len=seq_len, micro_batch_size=4, compile=False)

    validation_loss(TrainingState(model, []), tokens, params, torch.float32)
    selected = mark_spread_windows(tokens, eval_tokens, seq_len)

    assert np.array_equal(ids[selected], np.concatenate(model.scored))
    assert not mark_spread_windows(tokens, 0, seq_len).any(), "of an imported model"


@pytest.mark.parametrize(
    ("utf8_bytes", "selected_bytes"),
    [
        ([6, 3, 0, 9], [3, 3, 0, 0]),
        ([12, 2, 1, 9], [6, 2, 0, 0]),  # a tokenizer that changed the text: the same fractions
    ],
)
def test_sums_by_document_keep_selection_tokens_apart(validation, utf8_bytes, selected_bytes):
    documents = documents_of(validation, SELECTED, utf8_bytes)

    assert documents["tokens"].tolist() == [4, 3, 1, 4]
    assert documents["utf8_bytes"].tolist() == utf8_bytes
    assert documents["nats"].tolist() == [1 + 2 + 3 + 4, 5 + 6 + 7, 8, 9 + 10 + 11 + 12]
    assert documents["model_selection_nats"].tolist() == [3 + 4, 5 + 6, 0, 0]
    assert documents["model_selection_bytes"].tolist() == selected_bytes


def test_a_section_has_the_documents_with_text_in_it(validation):
    documents = documents_of(validation, SELECTED)

    sections = summarize_sections(documents)

    assert sections["clean"]["documents"] == 1, "a fifth of contaminated tokens is not clean"
    assert sections["model_selection"]["documents"] == 2
    assert sections["model_selection"]["bits_per_byte"] == pytest.approx((7 + 11) / LN2 / 6)
    assert sections["held_out"]["documents"] == 2
    assert sections["held_out"]["bits_per_byte"] == pytest.approx((3 + 42) / LN2 / 12)


def test_the_interval_is_that_of_the_documents(validation):
    documents = documents_of(validation, NONE_SELECTED, utf8_bytes=[6, 13, 5, 20])

    details = make_details(documents, *np.ones((2, 3), np.float32))

    bits = documents["nats"] / LN2
    expected = ratio_interval(bits, documents["utf8_bytes"], np.random.default_rng(1))
    assert "model_selection" not in details
    assert details["bits_per_byte_interval"] == pytest.approx([expected.low, expected.high])


def test_sources_with_text_are_summarized(validation):
    """The source `ends` has the document without text."""
    sources = {name: {"documents": count} for name, count in {"stories": 2, "ends": 1, "headers": 1}.items()}
    mixed = dataclasses.replace(validation, meta=validation.meta | {"sources": sources})
    source = source_of_documents(mixed)
    documents = documents_of(mixed, NONE_SELECTED) | source

    found = make_details(documents, *np.ones((2, 3), np.float32))["sources"]

    assert source["source"].tolist() == ["stories", "stories", "ends", "headers"]
    assert {name: figures["documents"] for name, figures in found.items()} == {"stories": 2, "headers": 1}
    assert found["stories"]["bits_per_byte"] == pytest.approx((10 + 18) / LN2 / 9)
    assert found["headers"]["bits_per_byte_se"] is None, "of one document"
    assert source_of_documents(validation) == {}


def test_figures_of_two_documents():
    nats = np.array([2.0, 6.0])
    num_tokens = np.array([2, 2])
    utf8_bytes = np.array([20, 20])

    figures = summarize(nats, num_tokens, utf8_bytes)

    assert figures["nats_per_token"] == 2.0
    assert figures["perplexity"] == pytest.approx(math.exp(2))
    assert figures["bits_per_byte"] == pytest.approx(8 / LN2 / 40)
    # At 0.2 nats a byte the residuals are -2 and 2.
    standard_error_nats = math.sqrt(2 / 1 * (2**2 + 2**2)) / 40
    assert figures["bits_per_byte_se"] == pytest.approx(standard_error_nats / LN2)
