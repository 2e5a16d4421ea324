"""Vocabularies made, downloaded or imported → the folder data/tokenizer.

A byte-level BPE is a mapping of tokens (bytes) to ranks. It is trained here or comes from tiktoken,
and is written both as ranks.tiktoken and as tokenizer.json, which give the same ids. A Hugging Face
tokenizer is written as transformers saves it. Every folder works offline, and
`AutoTokenizer.from_pretrained(folder)` opens it.
"""

import base64
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError
from lm.core.files import read_json, sha256_file, write_json
from lm.tokenizer.load import BACKEND, GPT2_PATTERN, META, RANKS, open_backend, token_dtype

END_OF_TEXT = "<|endoftext|>"
CONFIG = "tokenizer_config.json"

# The trainer takes time quadratic in its longest piece: a minute for one of 100,000 characters.
LONG_WORD_CHARS = 1000
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{LONG_WORD_CHARS},}}|(?<!\s)\s{{{LONG_WORD_CHARS},}}")

# SHA-256 of the ranks as ranks.tiktoken holds them, and of the files that tiktoken downloads.
RANKS_SHA256 = {"gpt2": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"}
DOWNLOADS = {
    "gpt2": {
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe": (
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
        ),
        "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/encoder.json": (
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
        ),
    }
}


def _byte_characters() -> list[str]:
    """The character by which GPT-2's vocabulary files write each byte: itself where it is visible."""
    visible = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(256 + hidden.index(byte)) if byte in hidden else chr(byte) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def _spelled(token: bytes) -> str:
    """The token as GPT-2's vocabulary files write it."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def train_ranks(batches: Iterable[list[str]], vocab_size: int) -> dict[bytes, int]:
    """Train byte-level BPE; the same text gives the same ranks on every machine.

    Returns the ranks of at most vocab_size - 1 tokens, which leaves one entry to end-of-text; fewer
    where the text holds no further pair twice. Words of more than LONG_WORD_CHARS are cut.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    cut_batches = ([part for text in texts for part in cut_long_words(text)] for texts in batches)
    tokenizer.train_from_iterator(cut_batches, trainer)
    vocabulary = tokenizer.get_vocab()
    return {bytes(_BYTES[character] for character in token): rank for token, rank in vocabulary.items()}


def cut_long_words(text: str) -> list[str]:
    """Cut a text after every LONG_WORD_CHARS of a run of white space, or of anything else, that is longer."""
    runs = _LONG_WORD.finditer(text) if len(text) > LONG_WORD_CHARS else ()
    cuts = [cut for run in runs for cut in range(run.start() + LONG_WORD_CHARS, run.end(), LONG_WORD_CHARS)]
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def download_ranks(encoding_name: str) -> dict[bytes, int]:
    """Return the ranks of an encoding of tiktoken's, from its cache or the network.

    Raises IntegrityError (and keeps the file) if a cached file is not the expected one, and
    EnvironmentFailure if a missing one cannot be downloaded.
    """
    import requests
    import tiktoken

    missing = _check_cache(encoding_name)
    try:
        encoding = tiktoken.get_encoding(encoding_name)
    except (requests.RequestException, ValueError) as error:
        wanted = ", ".join(f"{url} (sha256 {sha256}) as {path}" for path, url, sha256 in missing)
        raise EnvironmentFailure(
            f"tiktoken's {encoding_name} could not be downloaded ({type(error).__name__}); run again with a "
            f"network, or set TIKTOKEN_CACHE_DIR to a folder of: {wanted}"
        ) from error
    ranks = {encoding.decode_single_token_bytes(rank): rank for rank in range(encoding.eot_token)}
    found = hashlib.sha256(format_ranks(ranks)).hexdigest()
    if found != RANKS_SHA256[encoding_name]:
        raise IntegrityError(
            f"tiktoken's {encoding_name}: sha256 of its ranks is {found}, needed: "
            f"{RANKS_SHA256[encoding_name]}; install the pinned tiktoken"
        )
    return ranks


def _check_cache(encoding_name: str) -> list[tuple[Path, str, str]]:
    """Return (path, url, sha256) of the files that are not cached yet; a wrong one is an IntegrityError.

    tiktoken itself would delete the wrong file and then complain of the network alone.
    """
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    cache = Path(os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default)))
    missing = []
    for url, expected in DOWNLOADS[encoding_name].items():
        path = cache / hashlib.sha1(url.encode()).hexdigest()
        if not path.exists():
            missing.append((path, url, expected))
        elif (found := sha256_file(path)) != expected:
            raise IntegrityError(f"{path}: sha256 is {found}, needed for {url}: {expected}; delete it and run again")
    return missing


def write_byte_level(folder: Path, ranks: dict[bytes, int], kind: str, **origin) -> dict:
    """Write a byte-level BPE into an empty folder and return its meta.json; end-of-text comes last."""
    eot_id = len(ranks)
    (folder / RANKS).write_bytes(format_ranks(ranks))
    with _os_errors():
        byte_level_backend(ranks, eot_id).save(str(folder / BACKEND))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    write_json(folder / CONFIG, config)
    special_tokens = {END_OF_TEXT: eot_id}
    return _write_meta(folder, kind, eot_id + 1, eot_id, GPT2_PATTERN, special_tokens, origin)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Raise OSError where `tokenizers` raises Exception itself because it cannot write."""
    try:
        yield
    except Exception as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise


def format_ranks(ranks: dict[bytes, int]) -> bytes:
    """tiktoken's format: a token in base64, a space, its rank, one a line in the order of ranks."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)


def byte_level_backend(ranks: dict[bytes, int], eot_id: int) -> Tokenizer:
    """Return the ranks as a tokenizer of the `tokenizers` library."""
    vocabulary = {_spelled(token): rank for token, rank in ranks.items()}
    merges = [(_spelled(left), _spelled(right)) for left, right in recover_merges(ranks)]
    backend = Tokenizer(BPE(vocab={**vocabulary, END_OF_TEXT: eot_id}, merges=merges))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return backend


def recover_merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the pair that was merged into each token of several bytes, in the order of ranks.

    BPE with the lower ranks alone leaves exactly that pair of the token's bytes.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pair_ranks = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
            first = pair_ranks.index(min(pair_ranks))
            assert pair_ranks[first] < rank, f"rank {rank}, {token}, is no merge of lower ranks: {parts}"
            parts[first : first + 2] = [parts[first] + parts[first + 1]]
        merges.append(tuple(parts))
    return merges


def download_tokenizer(repo: str, revision: str, folder: Path) -> str:
    """Copy a Hugging Face repository's fast tokenizer, verified, into a folder; return its commit.

    transformers is not asked to download: it goes on silently without a tokenizer_config.json that
    the network failed to bring. Raises EnvironmentFailure without a network or a licence.
    """
    from lm.text.sources.hub import download, resolve_commit

    commit = resolve_commit(repo, revision, "model")
    for name in (BACKEND, CONFIG):
        shutil.copyfile(download(repo, commit, name, "model"), folder / name)
    return commit


def write_huggingface(folder: Path, source: Path, **origin) -> dict:
    """Write the tokenizer that lies in the folder `source` into an empty folder; return its meta.json.

    vocab_size counts what can stand in a token file: the vocabulary, tokens added to it that are
    ordinary text, and the id that ends a document ("<|endoftext|>", else the eos token). Raises
    DataError if that id is missing, or if a special token can come out of ordinary text.
    """
    auto = _open_auto(source)
    with _os_errors():
        auto.save_pretrained(folder)
    config = read_json(folder / CONFIG)
    write_json(folder / CONFIG, {**config, "split_special_tokens": True})

    backend = open_backend(folder / BACKEND)
    added = backend.get_added_tokens_decoder()
    special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}
    eot_id = special_tokens.get(END_OF_TEXT, auto.eos_token_id)
    if eot_id is None:
        raise DataError(f"the tokenizer has neither {END_OF_TEXT} nor an eos token to end documents with")
    _check_ordinary(backend, special_tokens, auto.unk_token_id)
    ordinary = [token_id for token_id, token in added.items() if not token.special]
    base = backend.get_vocab(with_added_tokens=False).values()
    vocab_size = 1 + max([*base, *ordinary, eot_id])
    return _write_meta(folder, "huggingface", vocab_size, eot_id, None, special_tokens, origin)


def _open_auto(source: Path):
    """Return transformers' AutoTokenizer of a folder; code in it never runs."""
    from transformers import AutoTokenizer

    try:
        auto = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises Exception itself on a file that it cannot read
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"transformers cannot build the tokenizer: {type(error).__name__}: {reason}") from error
    if not auto.is_fast:
        raise DataError(f"{type(auto).__name__} is no fast tokenizer; choose one with a {BACKEND}")
    if getattr(auto.backend_tokenizer.model, "dropout", None):
        raise DataError("the tokenizer leaves out merges at random (dropout), but ids must repeat; choose another")
    auto.backend_tokenizer.no_truncation()
    auto.backend_tokenizer.no_padding()
    return auto


def _check_ordinary(backend: Tokenizer, special_tokens: dict[str, int], unk_id: int | None) -> None:
    """Raise DataError if the name of a special token in a text is encoded as a special token.

    The unknown token alone may come out of text.
    """
    names = {token_id: name for name, token_id in special_tokens.items() if token_id != unk_id}
    for name in special_tokens:
        for text in (name, f"a{name}b", f"a {name} b"):
            found = names.keys() & backend.encode(text, add_special_tokens=False).ids
            if found:
                raise DataError(
                    f"the tokenizer gives the text {text!r} the id of {names[found.pop()]!r}, which must not "
                    "come out of a document; choose another tokenizer"
                )


def _write_meta(
    folder: Path,
    kind: str,
    vocab_size: int,
    eot_id: int,
    pattern: str | None,
    special_tokens: dict[str, int],
    origin: dict,
) -> dict:
    """Write meta.json last, with the SHA-256 of every other file, and return it."""
    meta = {
        "kind": kind,
        **origin,
        "vocab_size": vocab_size,
        "eot_id": eot_id,
        "dtype": token_dtype(vocab_size),
        "pattern": pattern,
        "special_tokens": special_tokens,
        "files": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
    }
    write_json(folder / META, meta)
    return meta
