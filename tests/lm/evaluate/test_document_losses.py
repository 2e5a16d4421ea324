"""Sums over documents: which tokens selected the model, sections, sources of a mixture."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.errors import IntegrityError
from lm.evaluate.documents import (
    loss_by_position,
    make_details,
    mark_model_selection,
    source_of_documents,
    sum_by_document,
    sum_by_span,
    summarize,
    summarize_sections,
)
from lm.evaluate.intervals import ratio_interval
from lm.tokens.tokenfile import TokenFile
from lm.train.state import TrainingState
from lm.train.step import validation_loss

LN2 = math.log(2)
EOT = 9
IDS = np.array([1, 2, 3, EOT, 1, 2, EOT, EOT, 3, 3, 3, EOT], np.uint16)  # documents of 4, 3, 1 and 4 tokens
TOKEN_BYTES = np.array([0, 1, 2, 3, 0, 0, 0, 0, 0, 0])
NONE = np.zeros(len(IDS), bool)
SELECTED = np.isin(np.arange(len(IDS)), [2, 3, 4, 5])  # the last two tokens of one document, two of the next


@pytest.fixture
def validation() -> TokenFile:
    return TokenFile(Path("validation.bin"), IDS, {"tokenizer": {"eot_id": EOT, "vocab_size": 10}})


def documents_of(validation: TokenFile, selected: np.ndarray, utf8_bytes=(6, 3, 0, 9)) -> dict[str, np.ndarray]:
    """Return the columns of documents whose tokens have the losses 1, 2, 3, …"""
    losses = np.arange(1, len(IDS) + 1, dtype=np.float32)
    documents = sum_by_document(losses, selected, TOKEN_BYTES[IDS], validation.spans, np.array(utf8_bytes))
    return documents | {"contaminated_fraction": np.array([0.0, 0.19, 0.2, 1.0])}


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


@dataclasses.dataclass
class Params:
    """The parameters of training that choose the model-selection tokens."""

    eval_tokens: int
    seq_len: int
    micro_batch_size: int
    compile: bool = False


@pytest.mark.parametrize(("num_tokens", "eval_tokens", "seq_len"), [(2000, 400, 10), (950, 10000, 10), (330, 5, 32)])
def test_the_marked_tokens_are_those_that_training_validates_on(num_tokens, eval_tokens, seq_len):
    ids = np.arange(num_tokens, dtype=np.uint16)
    tokens = TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": 0}})
    model = RecordingModel()
    selected = mark_model_selection(tokens, eval_tokens, seq_len)
    validation_loss(TrainingState(model, []), tokens, Params(eval_tokens, seq_len, micro_batch_size=4), torch.float32)
    assert np.array_equal(ids[selected], np.concatenate(model.scored))
    assert not mark_model_selection(tokens, 0, seq_len).any(), "no token selected an imported model"


@pytest.mark.parametrize(
    ("utf8_bytes", "selected_bytes"), [((6, 3, 0, 9), [3, 3, 0, 0]), ((12, 2, 1, 9), [6, 2, 0, 0])]
)
def test_sums_by_document_keep_selection_tokens_apart(validation, utf8_bytes, selected_bytes):
    """The tokens have 6, 3, 0 and 9 bytes; where the text has others, the selected part has the same fraction."""
    documents = documents_of(validation, SELECTED, utf8_bytes)
    assert documents["tokens"].tolist() == [4, 3, 1, 4]
    assert documents["utf8_bytes"].tolist() == list(utf8_bytes)
    assert documents["nats"].tolist() == [10, 18, 8, 42]
    assert documents["model_selection_nats"].tolist() == [7, 11, 0, 0]
    assert documents["model_selection_bytes"].tolist() == selected_bytes


def test_sections_leave_out_documents_without_text_in_them(validation):
    """A document whose contaminated fraction is 0.2 is not clean."""
    sections = summarize_sections(documents_of(validation, SELECTED))
    found = {name: (section["documents"], section["bits_per_byte"]) for name, section in sections.items()}
    assert found == {
        "model_selection": (2, pytest.approx((7 + 11) / LN2 / 6)),
        "held_out": (2, pytest.approx((3 + 42) / LN2 / 12)),
        "clean": (2, pytest.approx((10 + 18) / LN2 / 9)),
    }
    sections = summarize_sections(documents_of(validation, NONE, utf8_bytes=(6, 3, 5, 9)))
    assert sections["clean"]["documents"] == 2 and sections["held_out"]["documents"] == 4
    assert "model_selection" not in sections


def test_the_details_are_per_byte_with_an_interval(validation):
    documents = documents_of(validation, NONE, utf8_bytes=(6, 13, 5, 20))
    details = make_details(documents, np.ones(12, np.float32))
    bits = np.array([10, 18, 8, 42]) / LN2
    expected = ratio_interval(bits, documents["utf8_bytes"], np.random.default_rng(1))
    assert details["bits_per_byte_interval"] == pytest.approx([expected.low, expected.high])
    assert details["bits_per_byte"] == pytest.approx(bits.sum() / 44)
    assert details["bits_per_byte_non_overlapping"] == pytest.approx(12 / LN2 / 44)


def with_sources(validation: TokenFile, **documents: int) -> TokenFile:
    sources = {name: {"documents": count, "utf8_bytes": 1} for name, count in documents.items()}
    return dataclasses.replace(validation, meta={**validation.meta, "sources": sources})


def test_sources_of_a_mixture_are_summarized(validation):
    """The source `ends` has the document without text."""
    mixed = with_sources(validation, stories=2, ends=1, headers=1)
    documents = documents_of(mixed, NONE) | source_of_documents(mixed)
    assert documents["source"].tolist() == ["stories", "stories", "ends", "headers"]
    sources = make_details(documents, np.ones(12, np.float32))["sources"]
    assert list(sources) == ["stories", "headers"]
    assert sources["stories"]["documents"] == 2 and sources["stories"]["bits_per_byte_se"] > 0
    assert sources["stories"]["bits_per_byte"] == pytest.approx((10 + 18) / LN2 / 9)
    assert sources["headers"] == {
        "documents": 1,
        "bits_per_byte": pytest.approx(42 / LN2 / 9),
        "bits_per_byte_se": None,
    }
    assert source_of_documents(validation) == {}, "of a plain source"
    with pytest.raises(IntegrityError, match=r"validation.json: `sources` counts 5 documents, the file holds 4; run"):
        source_of_documents(with_sources(validation, stories=2, headers=3))


def test_figures_of_two_documents():
    nats = np.array([2.0, 6.0])
    tokens = np.array([2, 2])
    figures = summarize(nats, tokens, np.array([10, 30]))
    assert figures["nats_per_token"] == 2.0
    assert figures["perplexity"] == pytest.approx(math.exp(2))
    assert figures["bits_per_byte"] == pytest.approx(8 / LN2 / 40)
    assert figures["bits_per_byte_se"] == pytest.approx(0, abs=1e-12)
    # 0.2 nats a byte over sizes 20, 20: residuals -2 and 2; sqrt(2/1 · 8) / 40 nats
    assert summarize(nats, tokens, np.array([20, 20]))["bits_per_byte_se"] == pytest.approx(0.1 / LN2)
    assert summarize(nats[:1], tokens[:1], np.array([10]))["bits_per_byte_se"] is None


def test_sums_by_span_are_those_of_each_document():
    """The sums are right within float64's rounding for any dtype. Values after the last document do not count."""
    values = np.random.default_rng(1).random(1000).astype(np.float32)
    spans = np.lib.stride_tricks.sliding_window_view(np.array([0, 1, 2, 7, 14, 500, 999]), 2)
    for each in (values, values > 0.5, (200 * values).astype(np.uint8)):
        expected = [math.fsum(each[begin:end].tolist()) for begin, end in spans]
        assert sum_by_span(each, spans) == pytest.approx(expected, rel=1e-14)


def test_loss_by_position_is_a_mean_over_octaves():
    rows = loss_by_position(np.array([1.0, 2.0, 3.0, 5.0, 7.0]), np.array([0, 1, 2, 3, 4]))
    assert rows == [(1, 1.0, 1), (2, 2.0, 1), (4, 4.0, 2), (5, 7.0, 1)]
