"""Choose what to read of the validation text: the tokens that the model got most wrong, and typical documents.

The regret of a token is its loss; on generated stories, whose grammar is known, it is the loss minus the surprisal of
the token in the grammar (extras.probes.phenomena), so that what nobody can know does not count. Nats are rounded.
"""

import codecs
import math
from collections import defaultdict

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


def make_excerpts(
    model: Gemma3Model, losses: np.ndarray, surprisal_nats: np.ndarray | None, validation: TokenFile,
    tokenizer: Tokenizer, seq_len: int, stride: int,
) -> dict:  # fmt: skip
    """Return `places` of the largest regret and typical `documents`, with the text and the nats of each token.

    `losses` (N,) were scored in windows of `seq_len` tokens moved by `stride`; `surprisal_nats` (N,) is None if it is
    unknown.
    """
    ids, spans = validation.ids, validation.spans
    regret = losses if surprisal_nats is None else losses - surprisal_nats

    def describe(first: int, last: int) -> dict:
        """Return the texts and the nats of the tokens first … last - 1."""
        columns = {"loss_nats": losses} | ({} if surprisal_nats is None else {"regret_nats": regret})
        rounded = {name: [round(float(n), 3) + 0.0 for n in nats[first:last]] for name, nats in columns.items()}
        return {"texts": token_texts(ids[first:last], tokenizer)} | rounded  # + 0.0: no -0.0

    places, documents = [], []
    for document, token in largest_regrets(regret, ids, spans):
        start, end = spans[document].tolist()
        first = max(start, token - BEFORE)
        window = window_that_scores(token, len(ids), seq_len, stride)
        places.append(
            {"document": document, "token": token - start, "document_tokens": end - start, "marked": token - first}
            | alternatives(model, validation, tokenizer, window, token - window)
            | describe(first, min(end, token + AFTER + 1))
        )
    for document, quantile in typical_documents(losses, spans).items():
        start, end = spans[document].tolist()
        shown = {"quantile": quantile, "document": document, "document_tokens": end - start}
        documents.append(shown | describe(start, min(end, start + DOCUMENT_TOKENS)))
    return {"has_regret": surprisal_nats is not None, "places": places, "documents": documents}


def largest_regrets(regret: np.ndarray, ids: np.ndarray, spans: np.ndarray) -> list[tuple[int, int]]:
    """Return (document, token of the file) of the NUM_PLACES largest regrets (N,), largest first.

    Each id of the vocabulary has one place at most. A document has one place, or more if there are few documents; their
    excerpts do not overlap.
    """
    places, used, taken = [], set(), defaultdict(list)  # taken: document → tokens
    for token in np.argsort(-regret[: spans[-1, 1]], kind="stable").tolist():
        document, token_id = int(np.searchsorted(spans[:, 1], token, side="right")), int(ids[token])
        is_full = len(taken[document]) == math.ceil(NUM_PLACES / len(spans))
        if token_id in used or is_full or any(abs(token - other) <= BEFORE + AFTER for other in taken[document]):
            continue
        places.append((document, token))
        used.add(token_id)
        taken[document].append(token)
        if len(places) == NUM_PLACES:
            break
    return places


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
    likeliest = logits.sort(descending=True, stable=True).indices[:NUM_ALTERNATIVES].tolist()
    p = logits.softmax(0)
    texts = [_token_text(tokenizer, token).decode("utf-8", "backslashreplace") for token in likeliest]
    found = [{"text": text, "probability": round(p[i].item(), 5)} for i, text in zip(likeliest, texts, strict=True)]
    return {"rank": 1 + int((logits > logits[y[0, -1]]).sum()), "alternatives": found}


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
