"""Strings on which gigatoken is compared with tiktoken: every character, seeded pieces, long runs.

Words, contractions, white space, digits, special strings, NUL, characters of every plane, the neighbours of those that
differ, and lone surrogates, which become U+FFFD as everywhere.
"""

import random
import re
import string
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lm.text.documents import Chunk
from lm.tokenizer.gigatoken_encoder import END, NEW_CHARACTERS, ONLY_TIKTOKEN, Gigatoken
from lm.tokenizer.load import Tokenizer, well_formed

SPECIAL = ["<|endoftext|>", "<|fim_prefix|>", "<bos>", "<eos>", "<start_of_turn>", "<0x0A>", "▁", "Ġ", "\0", "\ufeff"]
CONTRACTIONS = ["'s", "'t", "'ll", "'ve", "'re", "'d", "'m", "'S", "'LL", "’s", "''", "'", "''s", "'l", "'v", "don't"]
ASCII_SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\x0b", "\x0c", "\x1c"]
OTHER_SPACES = list("\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\u180e")
NUMBERS = ["0", "1234567", "٣", "Ⅷ", "½", "²", "⑳"]
WORDS = ["the", " the", "Hello", " World", "camelCase", "snake_case", "ALLCAPS", "é", "e\u0301", "ß", "ſ", "İ", "ǅ"]
SYMBOLS = ["!?", "...", "//", "{", "};", "_", "->", "::", "#include"]
SCRIPTS = ["漢字", "한국", "العربية", "हिन्दी", "ไทย", "👩\u200d👩\u200d👧", "🇩🇪"]
NOT_CHARACTERS = ["\ud800", "\udfff", "\ud83d\ude00", "\ufffd", "\ufffe"]
PIECES = [
    *SPECIAL,
    *CONTRACTIONS,
    *ASCII_SPACES,
    *OTHER_SPACES,
    *NUMBERS,
    *WORDS,
    *SYMBOLS,
    *SCRIPTS,
    *NOT_CHARACTERS,
]


def neighbours_of_new_characters() -> list[str]:
    """Return the characters next to those that only tiktoken reads, if both libraries read them."""
    neighbours = []
    for code in re.findall(r"[0-9A-F]+", NEW_CHARACTERS):
        for step in (-1, 1):
            character = chr(int(code, 16) + step)
            if not re.match(ONLY_TIKTOKEN, character):
                neighbours.append(character)
    return neighbours


NEIGHBOURS = neighbours_of_new_characters()


def seeded_strings(num_strings: int, seed: int) -> Iterator[str]:
    """Yield strings of 0 to 40 pieces; one in 1,000 holds a run of up to 2,000 times the same piece."""
    draw = random.Random(seed)

    def piece() -> str:
        kind = draw.random()
        if kind < 0.55:
            return draw.choice(PIECES)
        if kind < 0.8:
            return draw.choice(string.printable) * draw.choice([1, 1, 2, 3, 9])
        if kind < 0.85:
            return draw.choice(NEIGHBOURS)
        if kind < 0.9:
            return chr(draw.randrange(0x3000))
        if kind < 0.95:
            return chr(draw.randrange(0x10000))
        return chr(draw.randrange(0x110000))

    for index in range(num_strings):
        text = "".join(piece() for _ in range(draw.randrange(41)))
        if index % 1000 == 999:
            text += piece() * draw.randrange(2000) + piece()
        yield text


def scalars() -> list[str]:
    """Return every character that UTF-8 can hold, but END."""
    surrogates = range(0xD800, 0xE000)
    return [chr(code) for code in range(0x110000) if code not in surrogates and chr(code) != END]


def chunk_of(texts: list[str], first_document: int = 0) -> Chunk:
    """Return a chunk of these texts alone, well formed."""
    texts = [well_formed(text) for text in texts]
    return Chunk(
        texts=pa.array(texts, pa.large_string()),
        first_document=first_document,
        characters=sum(len(text) for text in texts),
        utf8_bytes=sum(len(text.encode()) for text in texts),
        sources={},
    )


def texts_that_differ(gigatoken: Gigatoken, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Return the texts to which gigatoken gives other ids than tiktoken."""
    tiktoken_ids, lengths = tokenizer.encode_documents(texts)
    by_tiktoken = np.split(tiktoken_ids, np.cumsum(lengths)[:-1])

    gigatoken_ids = gigatoken.encode_texts(texts)
    after_ends = np.flatnonzero(gigatoken_ids == tokenizer.eot_id) + 1
    by_gigatoken = np.split(gigatoken_ids, after_ends)[:-1]

    differ = []
    for text, expected, found in zip(texts, by_tiktoken, by_gigatoken, strict=True):
        if not np.array_equal(expected, found):
            differ.append(text)
    return differ
