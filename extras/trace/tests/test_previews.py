"""The words that stand for a document in a list."""

from types import SimpleNamespace

import numpy as np

from extras.trace.previews import NUM_CHARS, previews

EOT_ID = 256


class BytesTokenizer:
    """A tokenizer whose ids are the bytes of the text."""

    def decode(self, ids) -> str:
        return bytes(ids.tolist()).decode()


def previews_of(texts: list[str]) -> list[str]:
    """Return the previews of all documents of a token file that holds these texts."""
    ids = []
    spans = []
    for text in texts:
        start = len(ids)
        ids += [*text.encode(), EOT_ID]
        spans.append((start, len(ids)))
    tokens = SimpleNamespace(ids=np.array(ids))
    return previews(tokens, BytesTokenizer(), np.array(spans))


def test_a_preview_begins_at_the_line_that_tells_a_document_apart():
    texts = [
        "licence\n\nfirst  story\nend",
        "licence\n\nsecond story",
        "licence\n",
        "a `story` " + "x" * 100,
    ]

    short_and_safe_in_markdown = "a 'story' " + "x" * (NUM_CHARS - 11) + "…"
    assert previews_of(texts) == ["first story end", "second story", "licence", short_and_safe_in_markdown]
