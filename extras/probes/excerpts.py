"""Choose what to read of the validation text: the tokens that the model got most wrong, and typical documents.

The regret of a token is its loss; on generated stories, whose grammar is known, it is the loss minus the surprisal of
the token in the grammar (extras.probes.phenomena), so that what nobody can know does not count. Nats are rounded.
"""

import codecs
import math

import numpy as np
import torch

from extras.probes.phenomena import derive_tokens
from lm.core.errors import DataError
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


def make_excerpts(
    model: Gemma3Model, losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer, seq_len: int, stride: int
) -> dict:
    """Return `places` of the largest regret and typical `documents`, with the text and the nats of each token.

    `losses` (N,) were scored in windows of `seq_len` tokens moved by `stride`. `has_regret` tells if the regret is not
    simply the loss.
    """
    has_regret = validation.meta["surprisal_bits"] is not None
    if has_regret:
        try:
            return _make_excerpts(model, losses, validation, tokenizer, seq_len, stride, has_regret)
        except DataError as error:
            print(f"the excerpts have the loss instead of the regret: {error}", flush=True)
    return _make_excerpts(model, losses, validation, tokenizer, seq_len, stride, False)


def _make_excerpts(model, losses, validation, tokenizer, seq_len: int, stride: int, has_regret: bool) -> dict:
    """Return `make_excerpts` with or without the regret; raise DataError if a document is not a story."""
    spans, num_tokens = validation.spans, len(validation.ids)
    places = []
    for document, token in largest_regrets(losses, validation, tokenizer, has_regret):
        start, end = spans[document].tolist()
        first, last = max(start, token - BEFORE), min(end, token + AFTER + 1)
        window = window_that_scores(token, num_tokens, seq_len, stride)
        places.append(
            {"document": document, "token": token - start, "document_tokens": end - start, "marked": token - first}
            | alternatives(model, validation, tokenizer, window, token - window)
            | _describe(losses, validation, tokenizer, document, slice(first - start, last - start), has_regret)
        )
    documents = [
        {"quantile": quantile, "document": document, "document_tokens": int(spans[document, 1] - spans[document, 0])}
        | _describe(losses, validation, tokenizer, document, slice(0, DOCUMENT_TOKENS), has_regret)
        for document, quantile in typical_documents(losses, spans).items()
    ]
    return {"has_regret": has_regret, "places": places, "documents": documents}


def regret_of(losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer, document: int, has_regret: bool):
    """Return the regret (T,) float64 in nats of the tokens of a document; `losses` (N,) are of the whole file."""
    start, end = validation.spans[document]
    nats = losses[start:end].astype(np.float64)
    return nats - derive_tokens(validation.ids[start:end], tokenizer)[3] * math.log(2) if has_regret else nats


def largest_regrets(
    losses: np.ndarray, validation: TokenFile, tokenizer: Tokenizer, has_regret: bool
) -> list[tuple[int, int]]:
    """Return (document, token of the file) of the NUM_PLACES largest regrets, largest first.

    Each id of the vocabulary has one place at most. A document has one place, or more if there are few documents; their
    excerpts do not overlap.
    """
    spans, largest = validation.spans, {}  # id → (regret, document, token)
    largest_loss = np.maximum.reduceat(losses[: spans[-1, 1]], spans[:, 0])
    for document in np.argsort(-largest_loss, kind="stable").tolist():
        found = sorted(largest.values(), key=lambda place: -place[0])[:NUM_PLACES]
        # No regret is above its loss, so all other documents have smaller ones.
        if len(found) == NUM_PLACES and largest_loss[document] <= found[-1][0]:
            break
        regret, start = regret_of(losses, validation, tokenizer, document, has_regret), int(spans[document, 0])
        for _ in range(math.ceil(NUM_PLACES / len(spans))):
            token = int(regret.argmax())
            place = float(regret[token]), document, start + token
            token_id = int(validation.ids[start + token])
            largest[token_id] = max(largest.get(token_id, place), place, key=lambda place: place[0])
            regret[max(0, token - BEFORE - AFTER) : token + BEFORE + AFTER + 1] = -np.inf
    found = sorted(largest.values(), key=lambda place: -place[0])[:NUM_PLACES]
    return [(document, token) for regret, document, token in found if regret > -np.inf]


def typical_documents(losses: np.ndarray, spans: np.ndarray) -> dict[int, float]:
    """Return document → quantile: the documents at QUANTILES of the nats per token."""
    order = np.argsort(sum_by_span(losses, spans) / (spans[:, 1] - spans[:, 0]), kind="stable")
    return {int(order[round(quantile * (len(order) - 1))]): quantile for quantile in QUANTILES}


@torch.inference_mode()
def alternatives(model: Gemma3Model, validation: TokenFile, tokenizer: Tokenizer, window: int, position: int) -> dict:
    """Return the rank of the token at a position of the window that begins at token `window`, and the likeliest ones.

    A rank of 1 is the most likely token. Probabilities are rounded.
    """
    x, y = inputs_and_targets(validation, np.array([window]), position + 1, model.device)
    logits = linear(model.hidden(x)[0, -1:], model.embed_tokens.weight)[0].float()
    likeliest = logits.sort(descending=True, stable=True).indices[:NUM_ALTERNATIVES]
    probabilities = logits.softmax(0)[likeliest].tolist()
    return {
        "rank": 1 + int((logits > logits[y[0, -1]]).sum()),
        "alternatives": [
            {"text": _token_text(tokenizer, token).decode("utf-8", "backslashreplace"), "probability": round(p, 5)}
            for token, p in zip(likeliest.tolist(), probabilities, strict=True)
        ],
    }


def _describe(losses, validation, tokenizer, document: int, tokens: slice, has_regret: bool) -> dict:
    """Return the texts and the nats of some tokens of a document, given as a slice of it."""
    start, end = validation.spans[document]
    described = {
        "texts": token_texts(validation.ids[start:end][tokens], tokenizer),
        "loss_nats": [round(float(nats), 3) for nats in losses[start:end][tokens]],
    }
    if has_regret:
        regret = regret_of(losses, validation, tokenizer, document, has_regret)[tokens]
        described["regret_nats"] = [round(float(nats), 3) + 0.0 for nats in regret]  # + 0.0: no -0.0
    return described


def token_texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Return the text of each of ids (T,); joined they are the whole text.

    A character of several tokens belongs to the last one. What is not UTF-8, as the end of a character that is cut off
    at the beginning, is U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(_token_text(tokenizer, int(token)), i == len(ids) - 1) for i, token in enumerate(ids)]


def _token_text(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token, the name of a special one."""
    text = tokenizer.token_texts.get(token)
    return tokenizer.decode_bytes([token]) if text is None else text
