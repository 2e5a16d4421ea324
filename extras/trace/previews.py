"""The first words of documents, which stand for them in a list."""

from collections import Counter

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_CHARS = 40
SEARCHED_TOKENS = 1000  # for a line that the other documents lack


def previews(tokens: TokenFile, tokenizer: Tokenizer, spans: np.ndarray) -> list[str]:
    """Return the first words of each document at token positions `spans` (D, 2), from a line on that the others lack.

    Where no line tells a document apart, such as a licence that all begin with, these are its first words. The
    end-of-text id is left out, white space becomes single spaces, backticks become apostrophes, so that the text is
    safe inside Markdown code.
    """
    texts = [
        tokenizer.decode(tokens.ids[start : min(end - 1, start + SEARCHED_TOKENS)]) for start, end in spans.tolist()
    ]
    lines = [[line.strip() for line in text.splitlines()] for text in texts]
    documents_with = Counter(line for own in lines for line in set(own))
    shown = []
    for own in lines:
        first = next((i for i, line in enumerate(own) if line and documents_with[line] == 1), 0)
        words = " ".join(" ".join(own[first:]).split()).replace("`", "'")
        shown.append(words if len(words) <= NUM_CHARS else words[: NUM_CHARS - 1] + "…")
    return shown
