"""Score minimal pairs of the validation text: the right and the wrong word after the same context, in nats.

Both texts are encoded with the characters after the word. The scored tokens begin with the first one that differs.
They end with the word, or after it where a token of either text holds characters of both: if `);` is one token, a
model that expects it gives little probability to `)` alone. Tokens after that, which both texts have, are not scored.
"""

import itertools
import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F

from extras.probes import code_pairs, story_pairs
from extras.probes.pair_choice import Pair, Place, choose_pairs
from lm.evaluate.intervals import proportion_interval
from lm.model.gemma3 import Gemma3Model
from lm.model.kernels import linear
from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile
from tools.common.statistics import LEAST_DIFFERENT, clustered_difference, detectable_difference, holm, units_needed

KINDS = (
    story_pairs.OTHER_PERSON, story_pairs.NEW_NAME, story_pairs.PRONOUN, story_pairs.OBJECT,
    code_pairs.BRACKET, code_pairs.GUARD, code_pairs.IDENTIFIER,
)  # fmt: skip
MAX_CHARS, MAX_STORIES = 2_000_000, 1000  # that are searched for places
REACH_CHARS = max(story_pairs.REACH_CHARS, code_pairs.REACH_CHARS)
CONTEXT_CHARS = REACH_CHARS + 56  # of them, the first ones are left out up to a blank
AFTER_CHARS = 8  # encoded after the word
BATCH_TOKENS, LENGTH_STEP = 8192, 16


class EncodedPair(NamedTuple):
    """The tokens before the first one that differs, and those that are scored: of the right and of the wrong text."""

    context: list[int]
    right: list[int]
    wrong: list[int]


def score_pairs(
    model: Gemma3Model, validation: TokenFile, are_stories: bool, tokenizer: Tokenizer, seq_len: int, num_pairs: int,
    seed: int,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return a table of columns (P,), sorted: each pair's kind, document, character, words, and the nats of both words.

    There are up to `num_pairs` pairs of a kind.
    """
    texts = read_documents(validation, tokenizer, seed)
    pairs = find_pairs(texts, are_stories, num_pairs, seed)
    encoded = [encode_pair(pair, texts[pair.document], tokenizer, seq_len) for pair in pairs]
    nats = score_encoded(model, encoded)
    columns = {name: np.array([pair[i] for pair in pairs]) for i, name in enumerate(Pair._fields)}
    for name, dtype in Pair.__annotations__.items():
        columns[name] = columns[name].astype(dtype)  # those of an empty table too
    return columns | {"right_nats": nats[:, 0], "wrong_nats": nats[:, 1]}


def summarize_pairs(columns: dict[str, np.ndarray]) -> dict[str, dict]:
    """Return kind → pairs, documents, accuracy and its interval for other documents, None for fewer than four."""
    credit, summary = credit_of(columns["right_nats"], columns["wrong_nats"]), {}
    for kind in dict.fromkeys(columns["kind"].tolist()):
        own = columns["kind"] == kind
        _, row = np.unique(columns["document"][own], return_inverse=True)
        right, pairs = np.bincount(row, credit[own]), np.bincount(row)
        interval = proportion_interval(right, pairs)  # 95 %
        figures = {"pairs": int(own.sum()), "documents": len(pairs), "accuracy": float(right.sum() / pairs.sum())}
        summary[kind] = figures | {"accuracy_interval": interval and list(interval)}
    return summary


def compare_pairs(a: pa.Table, b: pa.Table) -> dict[str, dict]:
    """Return kind → accuracies of two models on the pairs that both have scored, and their difference.

    A tie is half a pair. The pairs of a document count as one, and p is corrected for the number of kinds
    (`clustered_difference`, `holm`); there is no interval if few documents differ.
    """
    credits_a, credits_b, by_kind = _credits(a), _credits(b), defaultdict(list)
    for pair in sorted(credits_a.keys() & credits_b.keys()):
        by_kind[pair.kind].append((pair.document, credits_a[pair], credits_b[pair]))
    compared, differences = {}, []
    for kind, rows in by_kind.items():
        documents, of_a, of_b = (np.array(column) for column in zip(*rows, strict=True))
        differences.append(clustered_difference(of_b - of_a, np.ones(len(rows)), documents))
        accuracies = {"accuracy_a": float(of_a.mean()), "accuracy_b": float(of_b.mean())}
        compared[kind] = {"pairs": len(rows), "documents": len(set(documents.tolist())), **accuracies}
    for figures, found in zip(compared.values(), holm(differences), strict=True):
        figures["difference"] = found.value
        figures["difference_interval"] = None if found.low is None else [found.low, found.high]
        figures["p_after_holm"], figures["detectable_difference"] = found.p_value, detectable_difference(found)
        figures["documents_needed"] = units_needed(found, figures["documents"], LEAST_DIFFERENT)
    return compared


def credit_of(right_nats: np.ndarray, wrong_nats: np.ndarray) -> np.ndarray:
    """Return 1 where the right word is more likely, 1/2 for a tie, else 0: (P,) float64."""
    return (1 + np.sign(wrong_nats - right_nats)) / 2


def _credits(table: pa.Table) -> dict[Pair, float]:
    pairs = map(Pair, *(table[name].to_pylist() for name in Pair._fields))
    return dict(zip(pairs, credit_of(*(table[f"{word}_nats"].to_numpy() for word in ("right", "wrong"))), strict=True))


def read_documents(validation: TokenFile, tokenizer: Tokenizer, seed: int) -> dict[int, str]:
    """Return document → text, in random order, until there are MAX_CHARS characters."""
    texts, num_chars = {}, 0
    for document in np.random.default_rng(seed).permutation(len(validation.spans)).tolist():
        start, end = validation.spans[document]
        texts[document] = tokenizer.decode(validation.ids[start : end - 1])  # the last one is the end of the text
        num_chars += len(texts[document])
        if num_chars >= MAX_CHARS:
            break
    return texts


def find_pairs(texts: dict[int, str], are_stories: bool, num_pairs: int, seed: int) -> list[Pair]:
    """Return up to `num_pairs` pairs of each kind in the texts of documents, sorted."""
    by_kind: dict[str, list[Place]] = defaultdict(list)
    for number, (document, text) in enumerate(texts.items()):
        places = code_pairs.code_places(document, text)
        if are_stories and number < MAX_STORIES:
            places += story_pairs.story_places(document, text)
        for place in places:
            by_kind[place.kind].append(place)
    chosen = [choose_pairs(by_kind[kind], num_pairs, np.random.default_rng([seed, i])) for i, kind in enumerate(KINDS)]
    return sorted(itertools.chain.from_iterable(chosen))


def encode_pair(pair: Pair, text: str, tokenizer: Tokenizer, seq_len: int) -> EncodedPair:
    """Return the tokens of a pair, so that a window of seq_len inputs holds the context and either word.

    The context begins with end-of-text if it holds the start of the document, as in training.
    """
    start, end = _context_start(text, pair.character), pair.character + len(pair.right)
    before, after = text[start : pair.character], text[end : end + AFTER_CHARS]
    prefix = [tokenizer.eot_id] if start == 0 else []
    right, wrong = (prefix + tokenizer.encode(before + word + after) for word in (pair.right, pair.wrong))
    first = sum(1 for _ in itertools.takewhile(lambda ids: ids[0] == ids[1], zip(right, wrong, strict=False)))
    last = _common_end(right, wrong, tokenizer, len(after.encode()))
    words = [ids[first : len(ids) - last][:seq_len] for ids in (right, wrong)]
    num_context = max(1, seq_len + 1 - max(map(len, words)))
    return EncodedPair(right[max(0, first - num_context) : first], *words)


def _context_start(text: str, character: int) -> int:
    """Return where the context of a word begins: at the first blank, so that the first token is not part of a word."""
    start = character - CONTEXT_CHARS
    if start <= 0:
        return 0
    blank = re.compile(r"\s").search(text, start, character - REACH_CHARS)
    return blank.start() if blank else start


def _common_end(right: list[int], wrong: list[int], tokenizer: Tokenizer, most_bytes: int) -> int:
    """Return how many tokens at the end of both texts are equal and lie in the last `most_bytes` bytes."""
    count = num_bytes = 0
    for a, b in zip(reversed(right), reversed(wrong), strict=False):
        num_bytes += tokenizer.count_bytes(np.array([a]))
        if a != b or num_bytes > most_bytes:
            break
        count += 1
    return count


def score_encoded(model: Gemma3Model, pairs: list[EncodedPair]) -> np.ndarray:
    """Return the nats (P, 2) float64 of the right and of the wrong words; a pair's do not depend on the others."""
    texts = [(pair.context, word) for pair in pairs for word in (pair.right, pair.wrong)]
    nats, by_length = np.zeros(len(texts)), defaultdict(list)
    for number, (context, word) in enumerate(texts):
        padded = -(-(len(context) + len(word) - 1) // LENGTH_STEP) * LENGTH_STEP
        by_length[min(padded, model.config.max_seq_len)].append(number)
    for length, numbers in sorted(by_length.items()):
        batch_size = max(1, BATCH_TOKENS // length)
        for start in range(0, len(numbers), batch_size):
            batch = numbers[start : start + batch_size]
            nats[batch] = _score_batch(model, [texts[number] for number in batch], length)
    return nats.reshape(-1, 2)


@torch.inference_mode()
def _score_batch(model: Gemma3Model, texts: list[tuple[list[int], list[int]]], length: int) -> np.ndarray:
    """Return the nats (B,) of words after their contexts, in rows of `length` inputs that are padded on the right."""
    ids, is_scored = np.zeros((len(texts), length + 1), np.int64), np.zeros((len(texts), length), bool)
    for row, (context, word) in enumerate(texts):
        ids[row, : len(context) + len(word)] = context + word
        is_scored[row, len(context) - 1 : len(context) + len(word) - 1] = True
    tokens, scored = torch.from_numpy(ids).to(model.device), torch.from_numpy(is_scored).to(model.device)
    h = model.hidden(tokens[:, :-1])[scored]  # (M, C), without the logits of the context, which take most of the time
    losses = F.cross_entropy(linear(h, model.embed_tokens.weight).float(), tokens[:, 1:][scored], reduction="none")
    rows = np.nonzero(is_scored)[0]
    return np.bincount(rows, losses.cpu().numpy().astype(np.float64), len(texts))
