"""Text is cut as tiktoken's encoding gpt2 does, in training and in every library that encodes."""

import hashlib

import pytest

from lm.tokenizer.byte_level import train_bpe
from lm.tokenizer.load import load_tokenizer, open_backend
from lm.tokenizer.pretokenize import LONG_RUN_CHARS
from support.tokenizer_cases import TEXTS, auto_ids, digests, hard_texts, write_bpe

CODE = [
    'if (a_b->c[12345] != 0x7fff) {\n\t\treturn "it\'s";\n\t}\r\n',
    "HTTPServer",
    "/* " + "=" * 9 + " */\n\n\n",
    "//\n/",
]
CONTRACTIONS = ["'S", "'ſ", "'LL", "'vE", "'Re", "don't", "DON'T", "’t", "'l", "'", " 's", "é's", "1'd"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("bpe"))


def test_the_default_ids_are_the_committed_ones(tmp_path):
    """Golden: a change of these digests changes every token file that exists."""
    tokenizer = load_tokenizer(write_bpe(tmp_path))

    ids, _ = tokenizer.encode_documents(TEXTS)

    sha256_of = digests(tmp_path)
    assert sha256_of["ranks.tiktoken"].startswith("c69145d3a483878a")
    assert sha256_of["tokenizer.json"].startswith("65444a5b41dc3278")
    assert hashlib.sha256(ids.tobytes()).hexdigest().startswith("23e270a6d620ba49")


def test_the_exported_folder_gives_tiktokens_ids(folder):
    texts = [*TEXTS[:2000], *hard_texts(2000, seed=4), *CODE, *CONTRACTIONS]
    tokenizer = load_tokenizer(folder)
    expected = [tokenizer.encode(text) for text in texts]

    encodings = open_backend(folder / "tokenizer.json").encode_batch_fast(texts)

    assert [encoding.ids for encoding in encodings] == expected
    assert auto_ids(folder, texts[::9]) == expected[::9]


def test_training_merges_within_pieces_only():
    text = "DON'T 1234567 1234567//\n//\n x\n\n\n  y HTTPServer" * 9

    ranks, _ = train_bpe([[text]], 400)

    assert {b" 1234567", b"//"} <= ranks.keys()
    assert not {b"//\n", b"7//", b"T 1"} & ranks.keys()


MILLION_SPACES = " " * 1_000_000


def test_a_million_spaces_are_encoded(folder):
    """tiktoken's pattern fails on them in one piece."""
    text = f"a{MILLION_SPACES}\n1" + "\n\t" * LONG_RUN_CHARS + "\x1c'll"
    tokenizer = load_tokenizer(folder)

    assert tokenizer.decode(tokenizer.encode(text)) == text
