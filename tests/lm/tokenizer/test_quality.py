"""The card's figures on a vocabulary are those that one counts by hand."""

from pathlib import Path

import numpy as np
import pytest

from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import count_sources, measure_vocabulary, scripts_of
from lm.tokens.tokenfile import TokenFile


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        ("latin", [" the", "é"]),
        ("cjk", [" 漢", "か", "한", "ｶ"]),
        ("digits", ["12", " ½", "1a", "\U00011f50"]),  # the last is new in Unicode 15, and not in Python 3.11
        ("punctuation", [");"]),
        ("white_space", [" \n"]),
        ("other", ["\0"]),
        ("incomplete", ["\udce6\udcbc", "\udc80", " \udcc3", "é\udcff"]),  # bytes that are not whole characters
    ],
)
def test_a_token_has_the_script_of_its_first_character_but_white_space(script, tokens):
    encoded = [token.encode(errors="surrogateescape") for token in tokens]

    assert scripts_of(encoded) == [script] * len(tokens)


def test_the_fractions_of_the_card_leave_out_the_ends_of_documents(tmp_path):
    """`ab` is one entry here, so that of the four tokens with text three are single bytes."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    write_byte_level(tmp_path, ranks, "bpe")
    tokenizer = load_tokenizer(tmp_path)
    ids, _ = tokenizer.encode_documents(["xab", "yz", ""])
    tokens = TokenFile(Path("x.bin"), ids, {"tokenizer": tokenizer.sidecar_entry()})

    card = measure_vocabulary(tokens, tokens, tokenizer)

    assert card["single_byte_fraction"] == 3 / 4
    assert card["unused_fraction"] == (258 - 5) / 258
    assert card["longest"][0] == {"text": "ab", "utf8_bytes": 2, "count": 1}


IDS = np.array([1, 1, 9, 9, 1, 1, 1, 9, 1, 9], np.uint16)  # documents of 3, 1, 4 and 2 tokens


def test_sources_are_counted_apart():
    """The source `none` has no document."""
    sources = {
        "a": {"documents": 2, "utf8_bytes": 6},
        "none": {"documents": 0, "utf8_bytes": 0},
        "b": {"documents": 2, "utf8_bytes": 4},
    }
    validation = TokenFile(Path("x.bin"), IDS, {"tokenizer": {"eot_id": 9}, "sources": sources})

    assert count_sources(validation) == {
        "a": {"tokens": 3 + 1, "bytes_per_token": 6 / 4},
        "b": {"tokens": 4 + 2, "bytes_per_token": 4 / 6},
    }
    assert count_sources(TokenFile(Path("x.bin"), IDS, {"tokenizer": {"eot_id": 9}})) == {}
