"""Choose what to read of the validation text: the tokens that the model got most wrong, and typical documents.

The excess loss of a token is its loss; on generated stories, whose grammar is known, it is the loss minus the
surprisal of the token in the grammar (extras.probes.phenomena), below which no model can go.
"""

import codecs
from typing import NamedTuple

import numpy as np
import torch

from lm.evaluate.documents import sum_by_span
from lm.model.gemma3 import Gemma3Model
from lm.model.kernels import linear
from lm.model.score import inputs_and_targets, window_that_scores
from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_PLACES, BEFORE, AFTER = 20, 60, 20  # tokens around each place
QUANTILES = (0.1, 0.5, 0.9)  # of the documents, by nats per token
DOCUMENT_TOKENS = 300  # of a typical document, at most
NUM_ALTERNATIVES = 3


class Excerpt(NamedTuple):
    """Tokens of a document: the text of each, its loss and excess in nats; the one at `marked` is meant, -1: none."""

    title: str
    texts: list[str]
    loss_nats: np.ndarray
    excess_nats: np.ndarray
    marked: int = -1


def largest_excess_losses(
    model: Gemma3Model, losses: np.ndarray, excess_losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer,
    seq_len: int, stride: int,
) -> list[Excerpt]:  # fmt: skip
    """Return the excerpts around the largest excess losses (N,); the losses (N,) are of windows moved by `stride`."""
    excerpts = []
    for document, token in choose_places(excess_losses, validation.ids, validation.spans):
        start, end = validation.spans[document].tolist()
        first, last = max(start, token - BEFORE), min(end, token + AFTER + 1)
        window = window_that_scores(token, len(validation.ids), seq_len, stride)
        rank, likely = alternatives(model, validation, tokenizer, window, token - window)
        place = f"token {token - start + 1:,} of {end - start:,} of document {document}, rank {rank:,}"
        expected = ", ".join(f"{text!r} {100 * probability:.2g} %" for text, probability in likely)
        texts = token_texts(validation.ids[first:last], tokenizer)
        title = f"{texts[token - first]!r}: {excess_losses[token]:.2f} nats, {place}; expected: {expected}"
        excerpts.append(Excerpt(title, texts, losses[first:last], excess_losses[first:last], token - first))
    return excerpts


def typical_documents(
    losses: np.ndarray, excess_losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer
) -> list[Excerpt]:
    """Return the beginnings of the documents at QUANTILES of the nats per token."""
    spans, excerpts = validation.spans, []
    order = np.argsort(sum_by_span(losses, spans) / (spans[:, 1] - spans[:, 0]), kind="stable")
    for quantile in QUANTILES:
        document = int(order[round(quantile * (len(order) - 1))])
        start, end = spans[document].tolist()
        own = slice(start, min(end, start + DOCUMENT_TOKENS))
        title = f"document {document}: {quantile:.0%} of the documents have a lower loss per token"
        excerpts.append(Excerpt(title, token_texts(validation.ids[own], tokenizer), losses[own], excess_losses[own]))
    return excerpts


def choose_places(excess_losses: np.ndarray, ids: np.ndarray, spans: np.ndarray) -> list[tuple[int, int]]:
    """Return (document, token of the file) of the NUM_PLACES largest excess losses (N,), largest first.

    Each id of the vocabulary has one place at most, and excerpts do not overlap.
    """
    places, used = [], set()
    for token in np.argsort(-excess_losses[: spans[-1, 1]], kind="stable").tolist():
        if ids[token] in used or any(abs(token - other) <= BEFORE + AFTER for _, other in places):
            continue
        places.append((int(np.searchsorted(spans[:, 1], token, side="right")), token))
        used.add(ids[token])
        if len(places) == NUM_PLACES:
            break
    return places


@torch.inference_mode()
def alternatives(
    model: Gemma3Model, validation: TokenFile, tokenizer: Tokenizer, window: int, position: int
) -> tuple[int, list[tuple[str, float]]]:
    """Return the rank of the token at a position of the window that begins at token `window`; 1 is the most likely.

    Also return the texts and probabilities of the likeliest ones.
    """
    x, y = inputs_and_targets(validation, np.array([window]), position + 1, model.device)
    p = linear(model.hidden(x)[0, -1:], model.embed_tokens.weight)[0].float().softmax(0)
    likeliest = p.sort(descending=True, stable=True).indices[:NUM_ALTERNATIVES].tolist()
    texts = [_token_bytes(tokenizer, token).decode("utf-8", "backslashreplace") for token in likeliest]
    rank = 1 + int((p > p[y[0, -1]]).sum())
    return rank, list(zip(texts, p[likeliest].tolist(), strict=True))


def token_texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Return the text of each of ids (T,); joined they are the whole text.

    A character of several tokens belongs to the last one. What is not UTF-8, as the end of a character that is cut off
    at the beginning, is U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(_token_bytes(tokenizer, int(token)), i == len(ids) - 1) for i, token in enumerate(ids)]


def _token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token, the name of a special one."""
    text = tokenizer.token_texts.get(token)
    return tokenizer.decode_bytes([token]) if text is None else text
