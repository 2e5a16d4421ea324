"""Load data/tokenizer: text to token ids and back, with the same ids on every machine.

A byte-level vocabulary (ranks.tiktoken) runs in tiktoken, any other (tokenizer.json) in `tokenizers`.
Text is always ordinary text: "<|endoftext|>" inside a document gives the ids of its characters.
A lone surrogate is encoded as U+FFFD, NUL as its byte.
"""

import base64
import functools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tiktoken
import tokenizers
from numpy.typing import ArrayLike

from lm.core.errors import IntegrityError, UserError
from lm.core.files import check_sha256, check_types, read_json, safe_join, sha256_file
from lm.tokenizer.byte_level import BYTES_OF_CHARACTERS
from lm.tokenizer.pretokenize import PATTERN, cut_long_runs

META = "meta.json"
RANKS = "ranks.tiktoken"
BACKEND = "tokenizer.json"
REBUILD = "run `dvc repro -f make_tokenizer`"
# (pretokenizer, pattern, whether there is a file of ranks) of byte-level BPE, and of any other vocabulary.
KINDS = [("gpt2", PATTERN, True), (None, None, False)]
META_FORM = {
    "kind": str,
    "vocab_size": int,
    "eot_id": int,
    "dtype": str,
    "pretokenizer": (str, type(None)),
    "pattern": (str, type(None)),
    "special_tokens": {str: int},
    "files": {str: str, BACKEND: str},
}


def token_dtype(vocab_size: int) -> str:
    """Return the name of the narrowest dtype that token files use for ids below `vocab_size`."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def load_tokenizer(folder: Path | str) -> "Tokenizer":
    """Load the tokenizer of a folder that `make_tokenizer` wrote. Raise IntegrityError if a file was changed."""
    folder = Path(folder)
    path = folder / META
    meta = read_json(path)
    check_types(path, meta, META_FORM, REBUILD)

    # Check the dtype of ids.
    dtype = token_dtype(meta["vocab_size"])
    if meta["dtype"] != dtype:
        problem = f"dtype is {meta['dtype']}, but {meta['vocab_size']} entries need {dtype}"
        raise IntegrityError(f"{path}: {problem}; {REBUILD}")

    # Check that the vocabulary is byte-level BPE, with ranks and a pattern, or another one, with neither.
    if (meta["pretokenizer"], meta["pattern"], RANKS in meta["files"]) not in KINDS:
        problem = f"pretokenizer is {meta['pretokenizer']!r}; it must be 'gpt2', with its pattern and {RANKS}, or null"
        raise IntegrityError(f"{path}: {problem}; {REBUILD}")
    for name, expected in meta["files"].items():
        check_sha256(safe_join(folder, name, path), expected, META)
    return Tokenizer(folder, meta)


def well_formed(text: str) -> str:
    """Return the text with surrogate pairs joined and each lone surrogate replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Tokenizer:
    """A vocabulary of `vocab_size` entries; `eot_id` ends each document and text never gives it.

    `meta` is meta.json and `sha256` its digest, which identifies the tokenizer in everything made with it.
    `is_byte_level`: the bytes of a text's tokens are exactly the text's UTF-8 bytes; otherwise a normalizer may
    change the text first. Pickles as its folder, so that a worker process loads and checks it again.
    """

    def __init__(self, folder: Path, meta: dict):
        self.folder = folder
        self.meta = meta
        self.sha256 = sha256_file(folder / META)
        self.vocab_size: int = meta["vocab_size"]
        self.eot_id: int = meta["eot_id"]
        self.dtype = np.dtype(meta["dtype"]).newbyteorder("<")
        self.is_byte_level = RANKS in meta["files"]
        if self.is_byte_level:
            self.ranks = read_ranks(folder / RANKS, meta)
            options = {"pat_str": meta["pattern"], "special_tokens": meta["special_tokens"]}
            self._encoding = tiktoken.Encoding(meta["kind"], mergeable_ranks=self.ranks, **options)
        else:
            self._backend = open_backend(folder / BACKEND)

    def __reduce__(self):
        return load_tokenizer, (self.folder.resolve(),)

    def sidecar_entry(self) -> dict:
        """Return the entry of a token file's sidecar that names the tokenizer."""
        return {
            "kind": self.meta["kind"],
            "vocab_size": self.vocab_size,
            "eot_id": self.eot_id,
            "sha256": self.sha256,
        }

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, all of it ordinary, with nothing added around it."""
        return self._encode_all([well_formed(text)])[0].tolist()

    def encode_documents(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode each document separately and append `eot_id` to it.

        Return ids (N_tokens,) of `dtype`, one document after the other, and lengths (N_documents,) int64,
        each counting its eot_id. Raise IntegrityError for an id outside the vocabulary.
        """
        documents = self._encode_all([well_formed(text) for text in texts])
        lengths = np.array([len(document) + 1 for document in documents], dtype=np.int64)
        eot = np.array([self.eot_id], dtype=np.uint32)
        ids = np.concatenate([piece for document in documents for piece in (document, eot)] or [eot[:0]])
        if len(ids) and ids.max() >= self.vocab_size:
            raise IntegrityError(
                f"{self.folder}: text gave the id {ids.max()}, but {META} says {self.vocab_size} entries; {REBUILD}"
            )
        return ids.astype(self.dtype), lengths

    def _encode_all(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of each well-formed text, uint32."""
        if not self.is_byte_level:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        encode = functools.partial(self._encoding.encode_to_numpy, disallowed_special=())
        return [np.concatenate([encode(piece) for piece in cut_long_runs(text)]) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, special tokens by name; incomplete UTF-8 gives U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, special tokens by name."""
        ids = [int(token_id) for token_id in ids]
        if self.is_byte_level:
            return self._encoding.decode_bytes(ids)
        return self._backend.decode(ids, skip_special_tokens=False).encode("utf-8")

    def decode_all(self, documents: list[list[int]]) -> list[str]:
        """Return the text of the ids of each document, as `decode` gives it."""
        if self.is_byte_level:
            return [self.decode(ids) for ids in documents]
        return self._backend.decode_batch(documents, skip_special_tokens=False)

    @functools.cached_property
    def unk_id(self) -> int | None:
        """Return the id for text that the vocabulary cannot represent; None if there is none."""
        if self.is_byte_level:
            return None
        model = json.loads(self._backend.to_str())["model"]
        if model["type"] == "Unigram":
            return model["unk_id"]
        name = model.get("unk_token")
        return None if name is None else self._backend.token_to_id(name)

    @functools.cached_property
    def token_texts(self) -> dict[int, bytes]:
        """Return the bytes of text that each token stands for; special tokens are left out."""
        if self.is_byte_level:
            return {rank: token for token, rank in self.ranks.items()}
        return _token_texts(self._backend)

    @functools.cached_property
    def token_bytes(self) -> np.ndarray:
        """Return how many bytes of text each token stands for, (V,) int64; 0 for special tokens."""
        largest = max(self.token_texts, default=0)
        if largest >= self.vocab_size:
            raise IntegrityError(
                f"{self.folder}: has the id {largest}, {META} says {self.vocab_size} entries; {REBUILD}"
            )
        sizes = np.zeros(self.vocab_size, dtype=np.int64)
        sizes[list(self.token_texts)] = [len(text) for text in self.token_texts.values()]
        return sizes

    @functools.cached_property
    def _narrow_sizes(self) -> np.ndarray:
        """Return token_bytes in the narrowest dtype, so that the table stays in the processor's cache."""
        return self.token_bytes.astype(np.min_scalar_type(self.token_bytes.max(initial=0)))

    def bytes_of(self, ids: ArrayLike) -> np.ndarray:
        """Return how many bytes of text each of ids (N,) stands for: (N,) uint8, or wider for a longer token."""
        return self._narrow_sizes[np.asarray(ids)]

    def count_bytes(self, ids: np.ndarray) -> int:
        """Return how many bytes of text the ids (N,) stand for."""
        return int(self.bytes_of(ids).sum(dtype=np.int64))


def read_ranks(path: Path, meta: dict) -> dict[bytes, int]:
    """Return a file's ranks. Raise IntegrityError unless their number fits meta.json: tiktoken would panic later."""
    lines = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    size = len(ranks)
    special_ids = set(meta["special_tokens"].values())
    if (meta["eot_id"], meta["vocab_size"], special_ids) != (size, size + 1, {size}):
        problem = f"{META} has another eot_id, vocab_size or special token than {size} ranks imply"
        raise IntegrityError(f"{path}: {problem}; {REBUILD}")
    return ranks


def open_backend(path: Path) -> tokenizers.Tokenizer:
    """Open a tokenizer.json so that the names of special tokens in a text are ordinary text.

    Raise IntegrityError if `tokenizers` cannot read the file.
    """
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, MemoryError, UserError):
        raise
    except BaseException as error:  # `tokenizers` raises Exception itself, and a Rust panic is not an Exception
        raise IntegrityError(
            f"{path}: rejected by tokenizers ({' '.join(str(error).split())[:150]}); {REBUILD}"
        ) from None
    backend.encode_special_tokens = True
    return backend


def spelling_of(backend: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """Return the function from an entry of the vocabulary to the bytes of text that it stands for."""
    has_character_per_byte = "ByteLevel" in json.dumps(json.loads(backend.to_str())["decoder"])
    return _bytes_of_characters if has_character_per_byte else _bytes_of_text


def _token_texts(backend: tokenizers.Tokenizer) -> dict[int, bytes]:
    """Return the bytes that each token that is not special stands for, by the conventions of Hugging Face files."""
    spell = spelling_of(backend)
    texts = {token_id: spell(token) for token, token_id in backend.get_vocab(with_added_tokens=False).items()}
    for token_id, token in backend.get_added_tokens_decoder().items():
        if token.special:
            texts.pop(token_id, None)
        else:
            texts[token_id] = token.content.encode("utf-8")
    return texts


def _bytes_of_characters(token: str) -> bytes:
    """Return the bytes of a token that has one character per byte; a character that stands for none is one byte."""
    return bytes(BYTES_OF_CHARACTERS.get(character, 0) for character in token)


def _bytes_of_text(token: str) -> bytes:
    """Return the bytes of a token with byte fallback and ▁ for a space."""
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    if byte:
        return bytes.fromhex(byte[1])
    return token.replace("▁", " ").encode("utf-8")
