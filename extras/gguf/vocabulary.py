"""Describe a tokenizer in the terms of llama.cpp, or reject it if llama.cpp would give other ids.

llama.cpp (src/llama-vocab.cpp) has two kinds that fit: "gpt2", byte-level BPE, here with GPT-2's pre-tokenizer, and
"llama", SentencePiece's BPE, where any two neighbours whose joint text is a token are merged, the highest score first.
Its versions of cl100k and o200k split some texts elsewhere: 'ſ after a word, or letters outside ASCII by their case.
"""

import json
from collections import defaultdict
from collections.abc import Set
from typing import NamedTuple

from lm.core.errors import DataError
from lm.tokenizer.byte_level import BYTE_CHARACTERS
from lm.tokenizer.load import BACKEND, Tokenizer, open_backend

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6  # llama.cpp's types of tokens

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
GPT2_PIECES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPACES_AS_BARS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
# Rules of a BPE in the library `tokenizers` that llama.cpp does not have.
ABSENT = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")


class Vocabulary(NamedTuple):
    """The entries tokenizer.ggml of a GGUF file; tokens, types and scores are in the order of ids."""

    model: str  # "gpt2" or "llama"
    pre: str  # the pre-tokenizer
    tokens: list[str]
    types: list[int]
    merges: list[str]  # of "gpt2"
    scores: list[float]  # of "llama"
    eot_id: int


def describe_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a model with `vocab_size` ids; raise DataError if llama.cpp would give other ids."""
    rules = json.loads(open_backend(tokenizer.folder / BACKEND).to_str())
    try:
        kind = kind_of(rules)
        types = types_of(rules, kind)
        merges = [tuple(pair) for pair in rules["model"]["merges"]]
        score = merge_scores(merges) if kind == "llama" else {}
        if kind == "llama":
            check_splits([token for token, type in types.items() if type != USER_DEFINED], types.keys(), set(merges))
    except ValueError as error:
        raise DataError(f"{tokenizer.folder}: llama.cpp would give other ids, because {error}") from None

    ids = rules["model"]["vocab"] | {token["content"]: token["id"] for token in rules["added_tokens"]}
    token_of = {token_id: token for token, token_id in ids.items()}
    tokens = [token_of.get(token_id, f"[PAD{token_id}]") for token_id in range(vocab_size)]
    return Vocabulary(
        model=kind,
        pre="gpt-2" if kind == "gpt2" else "default",
        tokens=tokens,
        types=[types.get(token, UNUSED) for token in tokens],
        merges=[" ".join(pair) for pair in merges] if kind == "gpt2" else [],
        scores=[score.get(token, 0.0) for token in tokens] if kind == "llama" else [],
        eot_id=tokenizer.eot_id,
    )


def kind_of(rules: dict) -> str:
    """Return "gpt2" or "llama" for the content of a tokenizer.json; raise ValueError if neither has these rules."""
    model = rules["model"]
    cut = rules["pre_tokenizer"] or {}
    if model["type"] != "BPE" or any(model[name] for name in ABSENT):
        raise ValueError(f"its model is {model['type']} with additional rules; it must be plain BPE")
    # The normalizer replaces all spaces, so a pre-tokenizer that splits at spaces splits nothing.
    keeps_texts_whole = not cut or cut.get("pattern") == {"String": " "}
    if cut.items() >= GPT2_PIECES.items() and rules["normalizer"] is None:
        kind = "gpt2"
        needed = BYTE_CHARACTERS
    elif rules["normalizer"] == SPACES_AS_BARS and keeps_texts_whole and model["byte_fallback"]:
        kind = "llama"
        needed = BYTE_TOKENS
    else:
        raise ValueError("it splits texts differently; it must use the pre-tokenizer gpt2, or ▁ for spaces like Gemma")
    if missing := set(needed) - model["vocab"].keys():
        raise ValueError(f"it has no token for {len(missing)} of 256 bytes; it must have all")
    return kind


def types_of(rules: dict, kind: str) -> dict[str, int]:
    """Return token → type; raise ValueError if an added token is found in a text by rules that llama.cpp lacks."""
    types = dict.fromkeys(rules["model"]["vocab"], NORMAL)
    if kind == "llama":
        types |= dict.fromkeys(BYTE_TOKENS, BYTE)
    for token in rules["added_tokens"]:
        name = token["content"]
        if token["special"]:
            types[name] = CONTROL
        else:  # merges make tokens with ▁, which are spaces only as normal tokens
            types[name] = NORMAL if kind == "llama" and "▁" in name else USER_DEFINED
        if types[name] == USER_DEFINED and any(token[rule] for rule in ("lstrip", "rstrip", "single_word")):
            raise ValueError(f"the added token {name!r} depends on the text around it")
        if types[name] == USER_DEFINED and token["normalized"] and rules["normalizer"]:
            raise ValueError(f"the added token {name!r} is searched in the normalized text")
    check_overlaps([name for name, type in types.items() if type == USER_DEFINED])
    return types


def check_overlaps(names: list[str]) -> None:
    """Raise ValueError if one added token can begin inside another.

    llama.cpp searches all the text for the longest one; `tokenizers` takes the one that begins first. For two runs of
    one character, both give the same.
    """
    beginnings = defaultdict(list)
    for name in names:
        for end in range(1, len(name)):
            beginnings[name[:end]].append(name)
    for name in names:
        for start in range(1, len(name)):
            for other in beginnings.get(name[start:], []):
                if other != name and len(set(name + other)) > 1:
                    raise ValueError(f"the added tokens {name!r} and {other!r} can overlap")


def merge_scores(merges: list[tuple[str, str]]) -> dict[str, float]:
    """Return the score of each token that is merged, in the order of merges.

    Raise ValueError if the merges into one token are not next to each other: it has one score.
    """
    scores = {}
    last = ""
    for rank, (left, right) in enumerate(merges):
        token = left + right
        if token != last and token in scores:
            raise ValueError(f"other merges stand between two merges into {token!r}")
        scores.setdefault(token, -float(rank))
        last = token
    return scores


def check_splits(tokens: list[str], texts: Set[str], merges: set[tuple[str, str]]) -> None:
    """Raise ValueError if a token consists of two of `texts`, or characters, that are never merged."""
    for token in tokens:
        for middle in range(1, len(token)):
            left = token[:middle]
            right = token[middle:]
            both = (len(left) == 1 or left in texts) and (len(right) == 1 or right in texts)
            if both and (left, right) not in merges:
                raise ValueError(f"it never merges {left!r} and {right!r} into its token {token!r}")
