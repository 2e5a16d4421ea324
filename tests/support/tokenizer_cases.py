"""Texts and tokenizers for the tests of tokenizers.

TEXTS: 20,000 fuzzed texts of every Unicode plane. TRAINING: text for training a small vocabulary.
"""

import hashlib
import random
import string
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from lm.core.files import write_json
from lm.text.documents import Chunk
from lm.tokenizer.build import write_tiktoken, write_trained_bpe
from lm.tokenizer.load import well_formed
from support import ROOT

TIKTOKEN_CACHE = ROOT.parent / "shared" / "data" / "tiktoken_cache"
VOCAB_SIZE = 1200
GEMMA_LIKE_SIZE = 70_000  # uint16 cannot number them; the 262,144 of Gemma only take longer
SPECIAL = ["<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<unk>", "<pad>", "<0x0A>", "▁"]
SPACES = ["\0", " ", "   ", "\n", "\n\n\n", "\t", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u2028"]
SPACES += ["\u2029", "\x1c", "\x85", "\u200b", "\ufeff"]
WORDS = [
    *("'s", "'t", "'ll", "'VE", "''", "'", "’s", "0", "1234567", "٣", "Ⅷ", "the", " the", "hello", " World"),
    *("e\u0301", "é", "ß", "ſ", "İ", "!?", "...", "//", "{", "};", "_", "漢字", "한국", "العربية", "हिन्दी"),
    *("👩\u200d👩\u200d👧", "🇩🇪"),
]
PIECES = SPECIAL + SPACES + WORDS
# More contractions, kinds of space, digits, code and scripts.
MORE_PIECES = [
    *("<|fim_prefix|>", "Ġ", "'ve", "'re", "'d", "'m", "'S", "'LL", "''s", "'l", "'v", "don't"),
    *("  ", "\n\n", "\x0b", "\x0c", "\u1680", "\u202f", "\u205f", "\u180e", "Ⅷ", "½", "²", "⑳"),
    *("Hello", "camelCase", "snake_case", "ALLCAPS", "ǅ", "->", "::", "#include", "ไทย", "\ufffd"),
]


def fuzzed_texts(num_texts: int, seed: int, pieces: list[str] = PIECES) -> list[str]:
    """Return texts of 0 to 30 of these pieces, printable characters, and characters of every plane."""
    draw = random.Random(seed)

    def piece() -> str:
        kind = draw.random()
        if kind < 0.6:
            return draw.choice(pieces)
        if kind < 0.8:
            return draw.choice(string.printable) * draw.choice([1, 1, 1, 2, 7])
        code = draw.randrange(0x10000) if kind < 0.9 else draw.randrange(0x110000)
        is_surrogate = 0xD800 <= code < 0xE000
        return "\ufffd" if is_surrogate else chr(code)

    texts = []
    for _ in range(num_texts):
        num_pieces = draw.randrange(31)
        texts.append("".join(piece() for _ in range(num_pieces)))
    return texts


def hard_texts(num_texts: int, seed: int) -> list[str]:
    """Return fuzzed texts of all pieces, and a long run of each."""
    pieces = [*PIECES, *MORE_PIECES]
    runs = [piece * 999 + "x" for piece in pieces]
    return [*fuzzed_texts(num_texts, seed, pieces), *runs]


def chunk_of(texts: list[str]) -> Chunk:
    """Return a chunk of these texts alone, well formed."""
    texts = [well_formed(text) for text in texts]
    return Chunk(
        texts=pa.array(texts, pa.large_string()),
        first_document=0,
        characters=sum(len(text) for text in texts),
        utf8_bytes=sum(len(text.encode()) for text in texts),
        sources={},
    )


TEXTS = fuzzed_texts(20_000, seed=1)
TRAINING = fuzzed_texts(1000, seed=2) + ["the theory of the thing; it's 2024's best {code} \n" * 20] * 3


def write_bpe(folder: Path) -> Path:
    """Write a byte-level BPE of VOCAB_SIZE entries, trained on TRAINING."""
    write_trained_bpe(folder, [TRAINING[:600], TRAINING[600:]], VOCAB_SIZE)
    return folder


def write_gpt2(folder: Path) -> Path:
    """Write GPT-2's vocabulary from TIKTOKEN_CACHE; skip the test if the cache is missing."""
    if not TIKTOKEN_CACHE.exists():
        pytest.skip(f"{TIKTOKEN_CACHE} is absent: GPT-2's vocabulary would have to be downloaded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
        write_tiktoken(folder, "gpt2")
    return folder


def write_gemma_like(folder: Path, num_entries: int = GEMMA_LIKE_SIZE, after: tuple = ("<image_soft_token>",)) -> Path:
    """Write a tokenizer like Gemma's with this many entries, and special tokens `after` them."""
    # The vocabulary: special and added tokens, bytes, letters, and what merges make of two to four letters.
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = "▁" + string.ascii_letters + string.digits + string.punctuation + "é漢字"
    pairs = [left + right for left, right in product(string.ascii_lowercase, repeat=2)]
    merges = [*product(letters, letters), *product(pairs, letters), *product(pairs, pairs)]
    merged = [left + right for left, right in merges]
    entries = dict.fromkeys([*names, "\n", "\n\n", "<tag>", *byte_tokens, *letters, *merged])
    vocab = {entry: index for index, entry in enumerate(list(entries)[:num_entries])}
    merges = [(left, right) for left, right in merges if left + right in vocab]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)

    # What is done before and after the merges.
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    spaces = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])

    # Tokens that are found in a text as a whole; `after` comes after the vocabulary.
    special = [*names, *after]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    backend.add_tokens([AddedToken(name, normalized=False) for name in ("\n\n", "<tag>")])
    backend.enable_truncation(5)
    backend.enable_padding()
    return save_tokenizer(
        backend,
        folder,
        tokenizer_class="GemmaTokenizer",
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )


def save_tokenizer(backend: tokenizers.Tokenizer, folder: Path, **config) -> Path:
    """Write the two files of a fast tokenizer as a repository has them."""
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"clean_up_tokenization_spaces": False, **config})
    return folder


def auto_ids(folder: Path, texts: list[str], **options) -> list[list[int]]:
    """Return transformers' ids of the texts, with nothing added around them."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(folder, **options)
    return auto(texts, add_special_tokens=False)["input_ids"]


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
