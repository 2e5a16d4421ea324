"""One-line previews of documents."""

from collections import Counter

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_CHARS = 40
SEARCHED_TOKENS = 1000  # for a line that the other documents lack


def previews(tokens: TokenFile, tokenizer: Tokenizer, spans: np.ndarray) -> list[str]:
    """Return the words of each document at token positions `spans` (D, 2), from the first line that the others lack.

    If no line tells a document apart, return its first words. White space becomes single spaces, backticks become
    apostrophes, so the text is safe inside Markdown code.
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
