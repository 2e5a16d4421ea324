"""Copies are those of a plain search, and the pieces of a text are its whole text."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.evaluate import copies
from lm.evaluate.copies import Copy, find_copies, text_pieces


def positions_of(run: list[int], stream: list[int]) -> list[int]:
    starts = range(len(stream) - len(run) + 1)
    return [start for start in starts if stream[start : start + len(run)] == run]


def plain_copies(text: list[int], stream: list[int], n: int) -> list[Copy]:
    """Compute the definition, one run of ids at a time, with the first position of each."""
    copies = []
    for begin in range(len(text)):
        for end in range(begin + n, len(text) + 1):
            positions = positions_of(text[begin:end], stream)
            if positions:
                copies.append(Copy(begin, end, len(positions), positions[:1]))

    def is_inside_another(copy: Copy) -> bool:
        others = [other for other in copies if other != copy]
        return any(other.begin <= copy.begin and copy.end <= other.end for other in others)

    return [copy for copy in copies if not is_inside_another(copy)]


def random_text_and_stream(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 40 and 150 ids below 5, with copies at the text's and the stream's end, one of them twice."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 5, 40).astype(np.uint16)
    stream = rng.integers(0, 5, 150).astype(np.uint16)
    stream[20:30] = stream[60:70]
    text[32:38] = stream[22:28]
    text[10:30] = stream[-20:]
    return text, stream


@pytest.mark.parametrize("block_tokens", [7, 1 << 22])
def test_copies_are_those_of_a_plain_search(monkeypatch, block_tokens):
    monkeypatch.setattr(copies, "_BLOCK_TOKENS", block_tokens)

    for seed in (0, 5):
        text, stream = random_text_and_stream(seed)

        found, of_part = find_copies([text, text[:36]], stream, n=4, max_positions=1)

        assert found == plain_copies(text.tolist(), stream.tolist(), n=4)
        assert of_part == plain_copies(text[:36].tolist(), stream.tolist(), n=4)
        assert max(copy.length for copy in found) >= 20
        assert max(copy.count for copy in found) > 1


# Letters of 1, 1, 2 and 3 bytes; a token is a byte.
LETTERS = "ab\u00e9\u4e2d".encode()
BYTE_TOKENIZER = SimpleNamespace(decode=lambda ids: bytes(LETTERS[i] for i in ids).decode(errors="replace"))


def test_pieces_have_the_longest_copy_and_cut_no_character():
    ids = np.arange(len(LETTERS))
    copies_of_text = [Copy(0, 3, 1, [5]), Copy(1, 5, 1, [9])]

    pieces = text_pieces(ids, copies_of_text, BYTE_TOKENIZER)

    assert pieces == [
        ("a", 3),
        ("b\u00e9", 4),
        ("\u4e2d", 0),
    ]
    assert text_pieces(ids[:0], [], BYTE_TOKENIZER) == []
