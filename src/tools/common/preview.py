"""One line on a document of a token file: its number, source, place and first words."""

from collections import Counter

import numpy as np

from lm.text.mixture import order_of_sources
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


def document_sources(tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    """Return the source of each document of a mixture's training file; [] for other files, or if it cannot be told."""
    sources, text_slice = tokens.meta.get("sources", {}), tokens.meta.get("slice", {})
    if not (weights := text_slice.get("weights")) or text_slice["start_char"]:
        return []
    sizes = (tokenizer.count_bytes(tokens.ids[begin:end]) for begin, end in tokens.spans.tolist())
    order = order_of_sources(sizes, [weights[name] for name in sources])
    counts = np.bincount(order, minlength=len(sources)).tolist()
    is_sure = counts == [source["documents"] for source in sources.values()]
    return [list(sources)[number] for number in order] if is_sure else []


def describe_documents(tokens: TokenFile, tokenizer: Tokenizer, sources: list[str], start: int, end: int) -> list[str]:
    """Return a line on each document that tokens start … end - 1 of the stream touch: number, place and first words."""
    first = np.searchsorted(tokens.spans[:, 1], start, side="right")
    last, lines = np.searchsorted(tokens.spans[:, 0], end), []
    before = max(0, first - 1)  # the documents on both sides, because many begin with the same lines
    words = previews(tokens, tokenizer, tokens.spans[before : last + 1])[first - before :]
    for document, (begin, stop) in enumerate(tokens.spans[first:last].tolist(), int(first)):
        source = f" of {sources[document]}" if sources else ""
        place = f"its tokens {max(start, begin) - begin:,} to {min(end, stop) - begin - 1:,} of {stop - begin:,}"
        lines.append(f"document {document}{source}, {place}: {words[document - first]}")
    return lines


def quote(text: str) -> list[str]:
    """Return the lines of a text, each after a bar."""
    return [f"  | {line}" for line in text.split("\n")]
