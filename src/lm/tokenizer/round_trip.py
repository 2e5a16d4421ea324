"""Check that ids stand for their text, and count what a tokenizer loses.

If ids do not give back their text, bits per byte are too low.

The bytes are those of the original text, but the model need not predict what the tokenizer has dropped: an unknown
word, an upper-case letter, an accent, white space. A byte-level vocabulary loses nothing.
"""

from typing import NamedTuple

import numpy as np

from lm.core.errors import IntegrityError
from lm.text.documents import Chunk
from lm.tokenizer.load import Tokenizer


class RoundTrip(NamedTuple):
    """Tokens that are the unknown token, and documents that are decoded to another text."""

    unknown_tokens: int
    changed_documents: int


LOSSLESS = RoundTrip(0, 0)


def count_losses(ids: np.ndarray, texts: list[str], tokenizer: Tokenizer) -> RoundTrip:
    """Compare texts with what their ids (N,), each document's followed by eot_id, are decoded to."""
    if tokenizer.is_byte_level:
        return LOSSLESS
    ends = np.flatnonzero(ids == tokenizer.eot_id)
    documents = [document[:-1].tolist() for document in np.split(ids, ends[:-1] + 1)]
    decoded = tokenizer.decode_all(documents)
    # Tokenizers of SentencePiece add a space before the first word. Only some decoders remove it.
    pairs = zip(texts, decoded, strict=True)
    num_changed = sum(text.removeprefix(" ") != back.removeprefix(" ") for text, back in pairs)
    num_unknown = 0 if tokenizer.unk_id is None else int(np.count_nonzero(ids == tokenizer.unk_id))
    return RoundTrip(num_unknown, num_changed)


def check_ids(ids: np.ndarray, chunk: Chunk, tokenizer: Tokenizer) -> None:
    """Raise IntegrityError unless ids (N,) contain one eot_id per document of a chunk, the last one at their end.

    With a byte-level tokenizer, the ids must also stand for as many bytes as the texts have.
    """
    num_ends = np.count_nonzero(ids == tokenizer.eot_id)
    num_bytes = tokenizer.count_bytes(ids) if tokenizer.is_byte_level else chunk.utf8_bytes
    is_open = len(ids) > 0 and ids[-1] != tokenizer.eot_id
    if is_open or num_ends != chunk.documents or num_bytes != chunk.utf8_bytes:
        raise IntegrityError(
            f"tokenizer: {chunk.documents} documents of {chunk.utf8_bytes} bytes gave {num_ends} end-of-text ids "
            f"and {num_bytes} bytes; report the text from document {chunk.first_document} on"
        )
