"""Texts for tests: sentences of random words."""

import json
import random
import re
from pathlib import Path

WORDS = re.findall(
    r"\w+",
    """the a one old small red green cold warm house river stone garden window door road bridge market ship letter song
    clock lamp table bread apple horse bird cat dog child teacher farmer doctor king queen found lost made saw heard
    opened closed carried painted counted under over behind near after before slowly quickly again never always and
    but so because until while morning evening winter summer""",
)


def sentences(num_documents: int, seed: int = 0) -> list[str]:
    """Return documents of a few random sentences, about 300 characters each."""
    draw = random.Random(seed)
    documents = []
    for _ in range(num_documents):
        written = []
        for _ in range(draw.randrange(3, 12)):
            num_words = draw.randrange(4, 12)
            words = draw.choices(WORDS, k=num_words)
            written.append(" ".join(words).capitalize() + ".")
        documents.append(" ".join(written))
    return documents


def write_sentences(path: Path, num_documents: int, seed: int = 0) -> None:
    """Write `sentences` as JSON lines."""
    lines = [json.dumps({"text": text}) + "\n" for text in sentences(num_documents, seed)]
    path.write_text("".join(lines), encoding="utf-8")
