"""The card's figures on a vocabulary are those that one counts by hand."""

from pathlib import Path

import numpy as np
import pytest

from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import count_scripts, count_sources, measure_vocabulary, script_of
from lm.tokens.tokenfile import TokenFile
from support.tokenizer_cases import write_bpe

TEXT = "the theory, Привет 漢字かな 2024\n\n ½ é"


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        ("latin", ["the", " the", "é"]),
        ("cyrillic", ["Ж"]),
        ("cjk", [" 漢", "か", "한"]),
        ("digits", ["12", " ½", "٣", "1a"]),
        ("punctuation", [");", "+"]),
        ("white_space", [" \n", "\u3000"]),
        ("other", ["λ", "\0"]),
    ],
)
def test_a_token_has_the_script_of_its_first_character_but_white_space(script, tokens):
    for token in tokens:
        assert script_of(token.encode()) == script, token


@pytest.mark.parametrize("token", ["漢".encode()[:2], b"\x80", b" \xc3", "é".encode() + b"\xff"])
def test_a_part_of_a_character_has_no_script(token):
    assert script_of(token) == "incomplete"


def test_the_bytes_of_the_scripts_are_those_of_the_text(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    ids, _ = tokenizer.encode_documents([TEXT])
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)

    scripts = count_scripts(counts, tokenizer.token_texts)

    num_bytes = sum(each["tokens"] * each["bytes_per_token"] for each in scripts.values())
    assert num_bytes == pytest.approx(len(TEXT.encode()))
    assert {"latin", "digits", "punctuation"} <= set(scripts)


def test_the_longest_entries_that_occur_are_listed(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    ids, _ = tokenizer.encode_documents([TEXT, TEXT])
    tokens = TokenFile(Path("x.bin"), ids, {"tokenizer": tokenizer.sidecar_entry()})

    card = measure_vocabulary(tokens, tokens, tokenizer)

    used = sorted(set(ids.tolist()) - {tokenizer.eot_id})
    expected = []
    for token_id in used:
        content = tokenizer.token_texts[token_id]
        count = ids.tolist().count(token_id)
        expected.append({"text": content.decode("utf-8", "replace"), "utf8_bytes": len(content), "count": count})
    expected.sort(key=lambda entry: -entry["utf8_bytes"])  # equal ones stay in the order of their ids
    assert card["longest"] == expected[:10]
    assert expected[0]["utf8_bytes"] > expected[9]["utf8_bytes"]
    assert card["unused_entries"] == tokenizer.vocab_size - len(used) - 1


def test_the_fractions_of_the_card_leave_out_the_ends_of_documents(tmp_path):
    """`ab` is one entry here, so that of the four tokens with text three are single bytes."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    write_byte_level(tmp_path, ranks, "bpe")
    tokenizer = load_tokenizer(tmp_path)
    ids, _ = tokenizer.encode_documents(["xab", "yz", ""])
    tokens = TokenFile(Path("x.bin"), ids, {"tokenizer": tokenizer.sidecar_entry()})

    card = measure_vocabulary(tokens, tokens, tokenizer)

    assert card["single_byte_fraction"] == 3 / 4
    assert card["unused_entries"] == 258 - 5
    assert card["unused_fraction"] == (258 - 5) / 258
    assert card["longest"][0] == {"text": "ab", "utf8_bytes": 2, "count": 1}


def test_sources_are_counted_apart():
    """The documents have 3, 1, 4 and 2 tokens; the source `none` has no document."""
    ids = np.array([1, 1, 9, 9, 1, 1, 1, 9, 1, 9], np.uint16)
    sources = {
        "a": {"documents": 1, "utf8_bytes": 6},
        "none": {"documents": 0, "utf8_bytes": 0},
        "b": {"documents": 2, "utf8_bytes": 1},
        "c": {"documents": 1, "utf8_bytes": 3},
    }
    validation = TokenFile(Path("x.bin"), ids, {"tokenizer": {"eot_id": 9}, "sources": sources})

    assert count_sources(validation) == {
        "a": {"tokens": 3, "bytes_per_token": 2.0},
        "b": {"tokens": 5, "bytes_per_token": 0.2},
        "c": {"tokens": 2, "bytes_per_token": 1.5},
    }


def test_a_file_without_sources_has_none_to_count():
    ids = np.array([1, 9], np.uint16)

    assert count_sources(TokenFile(Path("x.bin"), ids, {"tokenizer": {"eot_id": 9}})) == {}
