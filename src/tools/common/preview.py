"""One-line preview of a document of a token file."""

import numpy as np

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_CHARS = 40


def preview(tokens: TokenFile, tokenizer: Tokenizer, span: np.ndarray) -> str:
    """Return the first characters of the document at token positions `span` (2,), safe inside Markdown code.

    The end-of-text id is left out, white space becomes single spaces, backticks become apostrophes.
    """
    start, end = int(span[0]), int(span[1]) - 1
    text = tokenizer.decode(tokens.ids[start : min(end, start + 2 * NUM_CHARS)])
    words = " ".join(text.split()).replace("`", "'")
    return words if len(words) <= NUM_CHARS else words[: NUM_CHARS - 1] + "…"
