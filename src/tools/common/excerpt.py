"""How a document of a token file begins, on one line: what people recognise it by."""

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_CHARS = 40


def beginning(tokens: TokenFile, tokenizer: Tokenizer, span: np.ndarray) -> str:
    """The first characters of the document at span (2,), its end-of-text id left out, white space folded,
    backticks replaced, so that it can stand in Markdown."""
    start, end = int(span[0]), int(span[1]) - 1
    text = tokenizer.decode(tokens.ids[start : min(end, start + 2 * NUM_CHARS)])
    words = " ".join(text.split()).replace("`", "'")
    return words if len(words) <= NUM_CHARS else words[: NUM_CHARS - 1] + "…"
