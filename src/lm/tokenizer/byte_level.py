"""Byte-level BPE as ranks (token bytes → rank): training, tiktoken's file format, the `tokenizers` form."""

import base64
import itertools
import json
import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

END_OF_TEXT = "<|endoftext|>"

# Training time is quadratic in the longest word: one of 100,000 characters takes a minute.
LONG_WORD_CHARS = 1000
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{LONG_WORD_CHARS},}}|(?<!\s)\s{{{LONG_WORD_CHARS},}}")


def _byte_characters() -> list[str]:
    """Return the character that stands for each byte in GPT-2's vocabulary files: itself if it is visible."""
    characters = [chr(byte) for byte in range(256)]
    hidden = [byte for byte in range(256) if not chr(byte).isprintable() or chr(byte) == " "]
    for number, byte in enumerate(hidden):
        characters[byte] = chr(256 + number)
    return characters


BYTE_CHARACTERS = _byte_characters()
BYTES_OF_CHARACTERS = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def train_bpe(batches: Iterable[list[str]], vocab_size: int) -> tuple[dict[bytes, int], list[tuple[bytes, bytes]]]:
    """Train byte-level BPE and return its ranks, at most vocab_size - 1, and its merges; the same on every machine.

    The end-of-text token takes one entry. There are fewer ranks if no other pair occurs twice in the text. Pairs are
    merged within the pieces of lm.tokenizer.pretokenize.PATTERN. Words longer than LONG_WORD_CHARS are cut.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    cut_batches = ([piece for text in texts for piece in cut_long_words(text)] for texts in batches)
    tokenizer.train_from_iterator(cut_batches, trainer)

    # The library writes tokens with a character for each byte.
    model = json.loads(tokenizer.to_str())["model"]
    ranks = {_bytes_of(token): rank for token, rank in model["vocab"].items()}
    merges = [(_bytes_of(left), _bytes_of(right)) for left, right in model["merges"]]
    return ranks, merges


def _bytes_of(token: str) -> bytes:
    """Return the bytes of a token of GPT-2's vocabulary files."""
    return bytes(BYTES_OF_CHARACTERS[character] for character in token)


def _characters_of(token: bytes) -> str:
    """Return a token as GPT-2's vocabulary files write it."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def cut_long_words(text: str) -> list[str]:
    """Cut runs of white space, or of other characters, into pieces of at most LONG_WORD_CHARS."""
    if len(text) <= LONG_WORD_CHARS:
        return [text]
    cuts = []
    for run in _LONG_WORD.finditer(text):
        cuts += range(run.start() + LONG_WORD_CHARS, run.end(), LONG_WORD_CHARS)
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def format_ranks(ranks: dict[bytes, int]) -> bytes:
    """Write ranks in tiktoken's format: one line per token, base64, a space, the rank, in the order of ranks."""
    lines = [base64.b64encode(token) + b" %d\n" % ranks[token] for token in sorted(ranks, key=ranks.__getitem__)]
    return b"".join(lines)


def byte_level_backend(ranks: dict[bytes, int], merges: list[tuple[bytes, bytes]], eot_id: int) -> Tokenizer:
    """Return ranks and merges as a tokenizer of the `tokenizers` library."""
    vocabulary = {_characters_of(token): rank for token, rank in ranks.items()}
    pairs = [(_characters_of(left), _characters_of(right)) for left, right in merges]
    backend = Tokenizer(BPE(vocab={**vocabulary, END_OF_TEXT: eot_id}, merges=pairs))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return backend


def recover_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the pair that was merged into each token of several bytes, in the order of ranks.

    tiktoken's files have ranks alone. Encoding the token's bytes with lower ranks only leaves exactly that pair.
    """
    merged = [token for token in ranks if len(token) > 1]
    merges = []
    for token in sorted(merged, key=ranks.__getitem__):
        rank = ranks[token]
        pieces = [bytes([byte]) for byte in token]
        while len(pieces) > 2:
            # Merge the pair of the lowest rank; `rank` stands for a pair that is not a token.
            pair_ranks = [ranks.get(left + right, rank) for left, right in itertools.pairwise(pieces)]
            lowest = min(pair_ranks)
            assert lowest < rank, f"rank {rank}, {token}, is not a merge of lower ranks: {pieces}"
            first = pair_ranks.index(lowest)
            pieces[first : first + 2] = [pieces[first] + pieces[first + 1]]
        left, right = pieces
        merges.append((left, right))
    return merges
