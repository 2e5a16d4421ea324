"""Write tokenizer folders: a vocabulary that is trained here, tiktoken's, one from Hugging Face, or one in a folder.

A byte-level BPE is written as ranks.tiktoken and as tokenizer.json, which give the same ids. Every folder works
offline, and `AutoTokenizer.from_pretrained(folder)` opens it.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from lm.core.errors import DataError, EnvironmentFailure, IntegrityError, ParamsError
from lm.core.files import read_json, sha256_file, write_json
from lm.tokenizer.byte_level import END_OF_TEXT, byte_level_backend, format_ranks, recover_merges, train_bpe
from lm.tokenizer.load import (
    BACKEND,
    META,
    RANKS,
    load_tokenizer,
    open_backend,
    spelling_of,
    token_dtype,
)
from lm.tokenizer.pretokenize import PATTERN

TOKENIZER_CONFIG = "tokenizer_config.json"
# Texts in which tokenizers differ: spaces at both ends and in a row, line ends, case, digits, forms of Unicode, signs.
PROBES = (
    "hello world",
    " hello  World, it's 12345 ",
    "says:\thello\r\n\n  (x_1+y) = {2.5}",
    "naïve e\u0301 ﬁ ½ ß İ \u00a0 \u3000 \u200b",
    "漢字 かな 한국어 العربية हिन्दी ไทย 👩\u200d👧",
    "▁a <0x0A> \0",
)

# SHA-256 of the content of ranks.tiktoken, and of each file that tiktoken downloads.
RANKS_SHA256 = {"gpt2": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"}
_GPT2_URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
DOWNLOADS = {
    "gpt2": {
        f"{_GPT2_URL}/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        f"{_GPT2_URL}/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    }
}


def write_trained_bpe(folder: Path, batches: Iterable[list[str]], vocab_size: int, **origin) -> dict:
    """Train byte-level BPE into an empty folder and return its meta.json; `origin` names the training text."""
    ranks, merges = train_bpe(batches, vocab_size)
    return write_byte_level(folder, ranks, "bpe", merges, **origin)


def write_tiktoken(folder: Path, encoding_name: str) -> dict:
    """Write one of tiktoken's encodings into an empty folder and return its meta.json."""
    return write_byte_level(folder, download_ranks(encoding_name), "tiktoken", encoding=encoding_name)


def write_from_hub(folder: Path, repo: str, revision: str) -> dict:
    """Download a Hugging Face tokenizer, write it into an empty folder and return its meta.json."""
    with tempfile.TemporaryDirectory() as source:
        commit = download_tokenizer(repo, revision, Path(source))
        return write_huggingface(folder, Path(source), repo=repo, revision=revision, commit=commit)


def write_from_folder(folder: Path, source: Path) -> dict:
    """Write the tokenizer of the folder `source` into an empty folder and return its meta.json.

    A folder with a meta.json is copied byte by byte, so that models trained with it recognize it by its hash. Any other
    must be one that transformers saved. Raise ParamsError for another folder, IntegrityError for a damaged one.
    """
    if (source / META).exists():
        try:
            meta = load_tokenizer(source).meta
        except IntegrityError as error:
            problem = str(error).rpartition("; ")[0] or error  # without the advice to remake data/tokenizer
            raise IntegrityError(f"{problem}; export or copy the tokenizer again") from None
        for name in (META, *meta["files"]):
            shutil.copyfile(source / name, folder / name)
        return meta
    if missing := [name for name in (BACKEND, TOKENIZER_CONFIG) if not (source / name).exists()]:
        problem = f"has neither {META} nor the {BACKEND} and {TOKENIZER_CONFIG} of transformers (missing: {missing[0]})"
        raise ParamsError(f"{source}: {problem}; name the folder of a tokenizer, or of a model that has one")
    with tempfile.TemporaryDirectory() as copy:  # without config.json, which would change how transformers opens it
        for name in (BACKEND, TOKENIZER_CONFIG):
            shutil.copyfile(source / name, Path(copy, name))
        return write_huggingface(folder, Path(copy))


def download_ranks(encoding_name: str) -> dict[bytes, int]:
    """Return the ranks of a tiktoken encoding. Raise IntegrityError for a wrong file, EnvironmentFailure for none."""
    import requests
    import tiktoken

    missing = _check_cache(encoding_name)
    try:
        encoding = tiktoken.get_encoding(encoding_name)
    except (requests.RequestException, ValueError) as error:
        files = ", ".join(f"{url} (sha256 {sha256}) as {path}" for path, url, sha256 in missing)
        raise EnvironmentFailure(
            f"tiktoken's {encoding_name} could not be downloaded ({type(error).__name__}); run again with a "
            f"network, or set TIKTOKEN_CACHE_DIR to a folder that contains: {files}"
        ) from error
    ranks = {encoding.decode_single_token_bytes(rank): rank for rank in range(encoding.eot_token)}
    sha256 = hashlib.sha256(format_ranks(ranks)).hexdigest()
    needed = RANKS_SHA256[encoding_name]
    if sha256 != needed:
        problem = f"sha256 of its ranks is {sha256}; it must be {needed}"
        raise IntegrityError(f"tiktoken's {encoding_name}: {problem}; install the pinned tiktoken")
    return ranks


def _check_cache(encoding_name: str) -> list[tuple[Path, str, str]]:
    """Return (path, url, sha256) of the files that are not cached yet; raise IntegrityError for a wrong one.

    tiktoken itself would delete a wrong file and then report only the missing network.
    """
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    cache = Path(os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", default)))
    missing = []
    for url, expected in DOWNLOADS[encoding_name].items():
        path = cache / hashlib.sha1(url.encode()).hexdigest()
        if not path.exists():
            missing.append((path, url, expected))
            continue
        sha256 = sha256_file(path)
        if sha256 != expected:
            raise IntegrityError(f"{path}: sha256 is {sha256}, needed for {url}: {expected}; delete it and run again")
    return missing


def download_tokenizer(repo: str, revision: str, folder: Path) -> str:
    """Download a fast tokenizer, verified, from the Hub into a folder; return its commit. Raise EnvironmentFailure."""
    from lm.text.sources.hub_client import download, resolve_commit

    # transformers is not used: if the network fails, it continues silently without a tokenizer_config.json.
    commit = resolve_commit(repo, revision, "model")
    for name in (BACKEND, TOKENIZER_CONFIG):
        shutil.copyfile(download(repo, commit, name, "model"), folder / name)
    return commit


def write_byte_level(
    folder: Path,
    ranks: dict[bytes, int],
    kind: str,
    merges: list[tuple[bytes, bytes]] | None = None,
    **origin,
) -> dict:
    """Write a byte-level BPE into an empty folder and return its meta.json; end-of-text is the last id.

    merges: None recovers them from the ranks.
    """
    eot_id = len(ranks)
    (folder / RANKS).write_bytes(format_ranks(ranks))
    merges = recover_merges(ranks) if merges is None else merges
    with _os_errors():
        byte_level_backend(ranks, merges, eot_id).save(str(folder / BACKEND))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    write_json(
        folder / TOKENIZER_CONFIG, {**config, "clean_up_tokenization_spaces": False, "split_special_tokens": True}
    )
    return _write_meta(folder, {"kind": kind, **origin}, eot_id + 1, eot_id, PATTERN, {END_OF_TEXT: eot_id})


def write_huggingface(folder: Path, source: Path, **origin) -> dict:
    """Write the tokenizer of the folder `source` into an empty folder and return its meta.json.

    vocab_size counts the ids that can occur in a token file: the vocabulary, added tokens that are ordinary text, and
    the id that ends a document. Raise DataError if that id is missing, if ordinary text can give a special token, or if
    transformers and the folder's tokenizer.json give different ids.
    """
    auto = _open_fast(source)
    if isinstance(auto.chat_template, dict):  # several templates would be files in a folder, and no stage needs them
        auto.chat_template = None
    try:
        with _os_errors():
            auto.save_pretrained(folder)
        eos_id = auto.eos_token_id
        unk_id = auto.unk_token_id
    except OSError:
        raise
    except Exception as error:
        raise DataError(f"transformers cannot write the tokenizer: {type(error).__name__}: {error}") from error
    config = readable_by_all(read_json(folder / TOKENIZER_CONFIG))
    write_json(folder / TOKENIZER_CONFIG, {**config, "split_special_tokens": True})

    backend = open_backend(folder / BACKEND)
    _check_ids(source / BACKEND, open_backend(source / BACKEND), backend)
    _check_auto(folder, backend)
    added = backend.get_added_tokens_decoder()
    special_tokens = {token.content: token_id for token_id, token in added.items() if token.special}
    eot_id = special_tokens.get(END_OF_TEXT, eos_id)
    if eot_id is None:
        raise DataError(f"the tokenizer has neither {END_OF_TEXT} nor an eos token to end each document")
    _check_ordinary(backend, special_tokens, unk_id)
    ordinary = [token_id for token_id, token in added.items() if not token.special]
    vocab_size = 1 + max([*backend.get_vocab(with_added_tokens=False).values(), *ordinary, eot_id])
    return _write_meta(folder, {"kind": "huggingface", **origin}, vocab_size, eot_id, None, special_tokens)


def _open_fast(source: Path):
    """Return the tokenizer of a folder, as transformers reads tokenizer.json; code in the folder never runs.

    AutoTokenizer would instead rebuild some tokenizers by the rules of their classes, which can give other ids.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        auto = PreTrainedTokenizerFast.from_pretrained(source)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # `tokenizers` raises Exception itself, and a Rust panic is not an Exception
        reason = str(error).strip().split("\n")[0]
        raise DataError(f"transformers cannot build the tokenizer: {type(error).__name__}: {reason}") from error
    if getattr(auto.backend_tokenizer.model, "dropout", None):
        raise DataError("the tokenizer drops merges at random (dropout), so its ids do not repeat; choose another")
    auto.backend_tokenizer.no_truncation()
    auto.backend_tokenizer.no_padding()
    return auto


def _check_ids(path: Path, expected: Tokenizer, found: Tokenizer, first: tuple[int, ...] = ()) -> None:
    """Raise DataError unless `found` gives PROBES the ids of the tokenizer of `path`, after the ids `first`."""
    expected.no_truncation()
    expected.no_padding()
    for text in PROBES:
        wanted = [*first, *expected.encode(text, add_special_tokens=False).ids]
        ids = found.encode(text, add_special_tokens=bool(first)).ids
        if ids != wanted:
            problem = f"gives the text {text!r} the ids {wanted}, and transformers {ids}"
            raise DataError(f"{path}: {problem}; choose another tokenizer")


def _check_auto(folder: Path, backend: Tokenizer, first: tuple[int, ...] = ()) -> None:
    """Raise DataError unless AutoTokenizer opens a folder and gives PROBES the ids of `backend`, after `first`."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(folder).backend_tokenizer
    _check_ids(folder / BACKEND, backend, auto, first)


def _check_ordinary(backend: Tokenizer, special_tokens: dict[str, int], unk_id: int | None) -> None:
    """Raise DataError if a text is encoded as a special token, except the unknown token.

    The tried texts are the names of special tokens, and these names read as entries of the vocabulary: Ċ is a line end.
    """
    names = {token_id: name for name, token_id in special_tokens.items() if token_id != unk_id}
    spell = spelling_of(backend)
    spelled = {spell(name).decode("utf-8", "replace") for name in special_tokens}
    for name in sorted({*special_tokens, *spelled}):
        for text in (name, f"a{name}b", f"a {name} b"):
            special_ids = names.keys() & backend.encode(text, add_special_tokens=False).ids
            if special_ids:
                given = f"gives the text {text!r} the id of {names[special_ids.pop()]!r}"
                raise DataError(f"the tokenizer {given}, which must not come from a document; choose another tokenizer")


def readable_by_all(config: dict) -> dict:
    """Return a tokenizer_config.json with names that transformers 4 knows too; they mean the same in version 5."""
    config = dict(config)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):  # transformers 4 has a mapping of that name
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    return config


def write_for_generation(folder: Path, source: Path, eot_id: int) -> None:
    """Write a copy of the tokenizer of `source` that begins each text with `eot_id`, and pads with it on the left.

    Raise DataError if AutoTokenizer gives other ids.
    """
    backend = open_backend(source / BACKEND)
    eot = backend.id_to_token(eot_id)
    backend.post_processor = TemplateProcessing(
        single=[eot, "$A"], pair=[eot, "$A", "$B"], special_tokens=[(eot, eot_id)]
    )
    with _os_errors():
        backend.save(str(folder / BACKEND))
    special = {"bos_token": eot, "eos_token": eot, "pad_token": eot, "padding_side": "left"}
    added = {"add_bos_token": True, "add_eos_token": False, "model_input_names": ["input_ids", "attention_mask"]}
    config = readable_by_all(read_json(source / TOKENIZER_CONFIG))
    write_json(folder / TOKENIZER_CONFIG, config | special | added)
    _check_auto(folder, backend, (eot_id,))


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Raise OSError if `tokenizers` cannot write a file, for which it raises Exception itself."""
    try:
        yield
    except Exception as error:
        found = re.search(r"os error (\d+)", str(error))
        if not found:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number)) from None


def _write_meta(
    folder: Path, origin: dict, vocab_size: int, eot_id: int, pattern: str | None, special_tokens: dict[str, int]
) -> dict:
    """Write meta.json last, with the SHA-256 of every other file, and return it. pattern: of byte-level BPE only."""
    files = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
    meta = {
        **origin,
        "vocab_size": vocab_size,
        "eot_id": eot_id,
        "dtype": token_dtype(vocab_size),
        "pretokenizer": None if pattern is None else "gpt2",
        "pattern": pattern,
        "special_tokens": special_tokens,
        "files": files,
    }
    write_json(folder / META, meta)
    return meta
