"""Test sums over documents: which tokens selected the model, sections, sources of a mixture."""

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

EOT = 9
IDS = np.array([1, 2, 3, EOT, 1, 2, EOT, EOT, 3, 3, 3, EOT], np.uint16)  # documents of 4, 3, 1 and 4 tokens
TOKEN_BYTES = np.array([0, 1, 2, 3, 0, 0, 0, 0, 0, 0])


@pytest.fixture
def validation() -> TokenFile:
    return TokenFile(Path("validation.bin"), IDS, {"tokenizer": {"eot_id": EOT, "vocab_size": 10}})


def documents_of(validation: TokenFile, selected: np.ndarray, utf8_bytes=(6, 3, 0, 9)) -> dict[str, np.ndarray]:
    losses = np.arange(1, len(IDS) + 1, dtype=np.float32)
    utf8_bytes = np.array(utf8_bytes)
    documents = sum_by_document(losses, selected, TOKEN_BYTES[IDS], validation.spans, utf8_bytes)
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
class Selection:
    """The parameters of training that choose the model-selection tokens."""

    eval_tokens: int
    seq_len: int
    micro_batch_tokens: int


@pytest.mark.parametrize(("num_tokens", "eval_tokens", "seq_len"), [(2000, 400, 10), (950, 10000, 10), (330, 5, 32)])
def test_selection_tokens_are_those_of_validations(num_tokens, eval_tokens, seq_len):
    ids = np.arange(num_tokens, dtype=np.uint16)
    ids[np.random.default_rng(1).integers(0, num_tokens // 2, 50)] = 0  # short documents, then a long one
    tokens, model = TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": 0}}), RecordingModel()
    selected = mark_model_selection(tokens, eval_tokens, seq_len)
    validation_loss(TrainingState(model, []), tokens, Selection(eval_tokens, seq_len, 4 * seq_len), torch.float32)
    assert np.array_equal(ids[selected], np.concatenate(model.scored))
    assert not mark_model_selection(tokens, 0, seq_len).any(), "no token selected an imported model"


def test_sums_by_document_keep_selection_tokens_apart(validation):
    selected = np.isin(np.arange(len(IDS)), [2, 3, 4, 5])  # the last two tokens of one document, two of the next
    documents = documents_of(validation, selected)
    assert documents["tokens"].tolist() == [4, 3, 1, 4]
    assert documents["utf8_bytes"].tolist() == [6, 3, 0, 9]
    assert documents["nats"].tolist() == [10, 18, 8, 42]
    assert documents["model_selection_nats"].tolist() == [7, 11, 0, 0]
    assert documents["model_selection_bytes"].tolist() == [3, 3, 0, 0]


def test_bytes_are_those_of_the_text(validation):
    selected = np.isin(np.arange(len(IDS)), [2, 3, 4, 5])
    documents = documents_of(validation, selected, utf8_bytes=(12, 2, 1, 9))
    assert documents["utf8_bytes"].tolist() == [12, 2, 1, 9]
    assert documents["model_selection_bytes"].tolist() == [6, 2, 0, 0]


def test_sections_leave_out_documents_without_text_in_them(validation):
    selected = np.isin(np.arange(len(IDS)), [2, 3, 4, 5])
    sections = summarize_sections(documents_of(validation, selected))
    assert {name: section["documents"] for name, section in sections.items()} == {
        "model_selection": 2, "held_out": 2, "clean": 2,
    }  # fmt: skip
    assert sections["model_selection"]["bits_per_byte"] == pytest.approx((7 + 11) / math.log(2) / 6)
    assert sections["held_out"]["bits_per_byte"] == pytest.approx((3 + 42) / math.log(2) / 12)
    assert sections["clean"]["bits_per_byte"] == pytest.approx((10 + 18) / math.log(2) / 9)


def test_a_document_at_the_limit_of_contamination_is_not_clean(validation):
    """Fractions 0, 0.19, 0.2 and 1 of the documents' tokens are in the training text."""
    sections = summarize_sections(documents_of(validation, np.zeros(len(IDS), bool), utf8_bytes=(6, 3, 5, 9)))
    assert sections["clean"]["documents"] == 2 and sections["held_out"]["documents"] == 4
    assert "model_selection" not in sections


def test_the_interval_is_that_of_bits_per_byte(validation):
    documents = documents_of(validation, np.zeros(len(IDS), bool), utf8_bytes=(6, 13, 5, 20))
    details = make_details(documents, np.ones(12, np.float32))
    bits = np.array([10, 18, 8, 42]) / math.log(2)
    expected = ratio_interval(bits, documents["utf8_bytes"], np.random.default_rng(1))
    assert details["bits_per_byte_interval"] == pytest.approx([expected.low, expected.high])
    assert details["bits_per_byte"] == pytest.approx(expected.value)
    assert expected.low < expected.value < expected.high


def with_sources(validation: TokenFile, **documents: int) -> TokenFile:
    sources = {name: {"documents": count, "utf8_bytes": 1, "passes": 1} for name, count in documents.items()}
    return dataclasses.replace(validation, meta={**validation.meta, "sources": sources})


def test_sources_of_a_mixture_are_summarized(validation):
    mixed = with_sources(validation, stories=1, headers=3)
    documents = documents_of(mixed, np.zeros(len(IDS), bool)) | source_of_documents(mixed)
    assert documents["source"].tolist() == ["stories", "headers", "headers", "headers"]
    sources = make_details(documents, np.ones(12, np.float32))["sources"]
    assert list(sources) == ["stories", "headers"]
    assert sources["stories"] == {
        "documents": 1, "bits_per_byte": pytest.approx(10 / math.log(2) / 6), "bits_per_byte_se": None,
    }  # fmt: skip
    assert sources["headers"]["documents"] == 2, "the empty document has no figure"
    assert sources["headers"]["bits_per_byte"] == pytest.approx((18 + 42) / math.log(2) / 12)
    assert sources["headers"]["bits_per_byte_se"] > 0
    assert source_of_documents(validation) == {}, "of a plain source"


def test_a_source_without_text_has_no_figures(validation):
    mixed = with_sources(validation, stories=2, ends=1, headers=1)
    documents = documents_of(mixed, np.zeros(len(IDS), bool)) | source_of_documents(mixed)
    assert list(make_details(documents, np.ones(12, np.float32))["sources"]) == [
        "stories",
        "headers",
    ]


def test_parts_that_count_other_documents_are_refused(validation):
    with pytest.raises(IntegrityError, match=r"validation.json: `sources` counts 5 documents, the file holds 4; run"):
        source_of_documents(with_sources(validation, stories=2, headers=3))


def test_the_non_overlapping_loss_is_per_byte(validation):
    documents = documents_of(validation, np.zeros(len(IDS), bool))
    details = make_details(documents, np.ones(12, np.float32))
    assert details["bits_per_byte_non_overlapping"] == pytest.approx(12 / math.log(2) / 18)


def test_sums_by_document_and_figures():
    nats, tokens, size = np.array([2.0, 6.0]), np.array([2, 2]), np.array([10, 30])
    assert sum_by_span(np.array([1.0, 1.0, 2.0, 4.0]), np.array([[0, 2], [2, 4]])).tolist() == [2.0, 6.0]
    figures = summarize(nats, tokens, size)
    assert figures["nats_per_token"] == 2.0
    assert figures["perplexity"] == pytest.approx(math.exp(2))
    assert figures["bits_per_byte"] == pytest.approx(8 / math.log(2) / 40)
    assert figures["bits_per_byte_se"] == pytest.approx(0, abs=1e-12)
    # 0.2 nats a byte over sizes 20, 20: residuals -2 and 2; sqrt(2/1 · 8) / 40 nats
    unequal = summarize(nats, tokens, np.array([20, 20]))
    assert unequal["bits_per_byte_se"] == pytest.approx(0.1 / math.log(2))
    assert "bits_per_byte_se" in figures and summarize(nats[:1], tokens[:1], size[:1])["bits_per_byte_se"] is None


def test_sums_by_span_are_those_of_each_document():
    """Within float64's rounding, of any dtype and however unequal; what follows the last document does not count."""
    values = np.random.default_rng(1).random(1000).astype(np.float32)
    bounds = [0, 1, 2, 7, 14, 500, 999]
    spans = np.lib.stride_tricks.sliding_window_view(np.array(bounds), 2)
    for each in (values, values > 0.5, (200 * values).astype(np.uint8)):
        expected = [math.fsum(each[begin:end].tolist()) for begin, end in spans]
        assert sum_by_span(each, spans) == pytest.approx(expected, rel=1e-14)


def test_loss_by_position_is_a_mean_over_octaves():
    rows = loss_by_position(np.array([1.0, 2.0, 3.0, 5.0, 7.0]), np.array([0, 1, 2, 3, 4]))
    assert rows == [(1, 1.0, 1), (2, 2.0, 1), (4, 4.0, 2), (5, 7.0, 1)]
