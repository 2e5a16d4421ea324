"""Describe documents of a token file in one line each: number, source, place and first words."""

import numpy as np

from extras.trace.previews import previews
from lm.text.documents import SOURCE, Text, describe_text, is_mixture, open_manifest
from lm.text.slices import slice_from
from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile
from tools.record import paths


def document_sources(tokens: TokenFile) -> list[str]:
    """Return the source of each document of a mixture's file, from data/raw; [] for other files or another text."""
    text_slice = slice_from(tokens.meta["slice"]) if tokens.meta.get("slice") else None
    if text_slice is None or not paths.MANIFEST.exists():
        return []
    manifest = open_manifest(paths.RAW)
    is_same = describe_text(manifest, text_slice) == tokens.meta["source"]
    if not (is_same and is_mixture(manifest)):
        return []
    rows = Text(paths.RAW, manifest, text_slice).rows((SOURCE,))
    return [name for batch, _ in rows for name in batch.column(1).to_pylist()]


def describe_documents(tokens: TokenFile, tokenizer: Tokenizer, sources: list[str], start: int, end: int) -> list[str]:
    """Return a line on each document that tokens start … end - 1 of the stream touch: number, place and first words."""
    document_starts = tokens.spans[:, 0]
    document_ends = tokens.spans[:, 1]
    first = int(np.searchsorted(document_ends, start, side="right"))
    last = int(np.searchsorted(document_starts, end))

    # Compare also with the documents on both sides, because many begin with the same lines.
    before = max(0, first - 1)
    words = previews(tokens, tokenizer, tokens.spans[before : last + 1])

    lines = []
    for document in range(first, last):
        source = f" of {sources[document]}" if sources else ""
        document_start = int(document_starts[document])
        document_end = int(document_ends[document])
        first_token = max(start, document_start) - document_start
        last_token = min(end, document_end) - document_start - 1
        place = f"its tokens {first_token:,} to {last_token:,} of {document_end - document_start:,}"
        lines.append(f"document {document}{source}, {place}: {words[document - before]}")
    return lines


def quote(text: str) -> list[str]:
    """Return the lines of a text, each after a bar."""
    return [f"  | {line}" for line in text.split("\n")]
