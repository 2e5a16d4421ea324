"""Copies are those of a plain search, and the pieces of a text are its whole text."""

from types import SimpleNamespace

import numpy as np
import pytest

from lm.evaluate import copies


def plain_copies(text: list[int], stream: list[int], n: int) -> list[tuple[int, int, list[int]]]:
    """Compute the definition, one run of ids at a time: (begin, end, positions)."""

    def positions_of(run: list[int]) -> list[int]:
        return [i for i in range(len(stream) - len(run) + 1) if stream[i : i + len(run)] == run]

    runs = []
    for begin in range(len(text)):
        for end in range(begin + n, len(text) + 1):
            positions = positions_of(text[begin:end])
            if positions:
                runs.append((begin, end, positions))

    def is_in_a_longer_one(begin: int, end: int) -> bool:
        return any(i <= begin and end <= j and (i, j) != (begin, end) for i, j, _ in runs)

    return [run for run in runs if not is_in_a_longer_one(run[0], run[1])]


@pytest.mark.parametrize("seed", [0, 1, 5])
@pytest.mark.parametrize("block_tokens", [7, 1 << 22])
def test_copies_are_those_of_a_plain_search(monkeypatch, seed, block_tokens):
    monkeypatch.setattr(copies, "_BLOCK_TOKENS", block_tokens)
    rng = np.random.default_rng(seed)
    text, stream = (rng.integers(0, 5, size).astype(np.uint16) for size in (40, 150))
    stream[20:30] = stream[60:70]
    text[30:36] = stream[22:28]  # twice in the stream
    text[10 : 10 + 4 * seed] = stream[-4 * seed :] if seed else text[10:10]
    *found, short = copies.find_copies([text, text[:20], text[:3]], stream, 4, max_positions=1)
    assert short == [] and max(copy.length for copy in found[0]) >= 4 * seed
    for ids, its_copies in zip((text, text[:20]), found, strict=True):
        expected = plain_copies(ids.tolist(), stream.tolist(), 4)
        assert [(*copy,) for copy in its_copies] == [(i, j, len(at), at[:1]) for i, j, at in expected]
    assert any(copy.count > 1 for copy in found[0])


def test_pieces_have_the_longest_copy_and_cut_no_character():
    letters = "ab\u00e9\u4e2d".encode()  # 1, 1, 2 and 3 bytes; a token is a byte
    tokenizer = SimpleNamespace(decode=lambda ids: bytes(letters[i] for i in ids).decode(errors="replace"))
    found = [copies.Copy(0, 3, 1, [5]), copies.Copy(1, 5, 1, [9])]
    assert copies.text_pieces(np.arange(7), found, tokenizer) == [("a", 3), ("b\u00e9", 4), ("\u4e2d", 0)]
    assert copies.text_pieces(np.arange(0), [], tokenizer) == []
