"""The figures of the audit on a vocabulary are those that one counts by hand."""

from pathlib import Path

from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.quality import measure_vocabulary
from lm.tokens.tokenfile import TokenFile


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
