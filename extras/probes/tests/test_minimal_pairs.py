"""Scores of minimal pairs: equal characters are compared, a model without context is right in half of the pairs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from extras.probes import minimal_pairs
from extras.probes.code_pairs import BRACKET, IDENTIFIER
from extras.probes.minimal_pairs import (
    EncodedPair,
    compare_pairs,
    encode_pair,
    find_pairs,
    score_encoded,
    score_pairs,
    summarize_pairs,
)
from extras.probes.pair_choice import Pair
from lm.text.sources.stories.grammar import story
from lm.tokenizer.build import train_ranks, write_byte_level
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile
from support import ROOT
from support.model_cases import build, write_gemma_like

C_SAMPLE = ROOT.parent / "shared" / "data" / "c-sample.parquet"


def write_bpe(folder: Path, texts: list[str], vocab_size: int = 1000) -> Tokenizer:
    folder.mkdir()
    write_byte_level(folder, train_ranks([texts], vocab_size), "bpe")
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def code() -> list[str]:
    """Return functions with random names."""
    rng, texts = np.random.default_rng(3), []
    syllables = ["ba", "co", "di", "fu", "ga", "he", "ki", "lo", "mu", "ne", "po", "ru", "sa", "ti", "vo"]
    for _ in range(80):
        a, b, c, d = ("".join(rng.choice(syllables, 3)) for _ in range(4))
        lines = [
            f"int {a}(int {b}, int *{c}) {{",
            f"  int {d} = {c}[{b}];",
            f"  {a}({d});",
            f"  return {d} + {b};",
            "}",
        ]
        texts.append("\n".join(lines) + "\n")
    return texts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, code) -> Tokenizer:
    return write_bpe(tmp_path_factory.mktemp("pairs") / "bpe", code)


def token_file(texts: list[str], tokenizer: Tokenizer) -> TokenFile:
    ids, _ = tokenizer.encode_documents(texts)
    return TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": tokenizer.eot_id}})


def unigram_columns(texts: dict[int, str], pairs: list[Pair], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Return the table of a model that knows how often each token occurs, and no context."""
    ids = np.concatenate([tokenizer.encode(text) for text in texts.values()])
    nats = -np.log((np.bincount(ids, minlength=tokenizer.vocab_size) + 1) / (len(ids) + tokenizer.vocab_size))
    encoded = [encode_pair(pair, texts[pair.document], tokenizer, 128) for pair in pairs]
    columns = {"kind": np.array([pair.kind for pair in pairs]), "document": np.array([pair.document for pair in pairs])}
    sums = {side: np.array([nats[getattr(pair, side)].sum() for pair in encoded]) for side in ("right", "wrong")}
    return columns | {f"{side}_nats": values for side, values in sums.items()}


def check_half_right(texts: list[str], are_stories: bool, tokenizer: Tokenizer, kinds: int) -> None:
    documents = dict(enumerate(texts))
    pairs = find_pairs(documents, are_stories, 500, seed=1)
    found = summarize_pairs(unigram_columns(documents, pairs, tokenizer))
    assert len(found) == kinds
    for figures in found.values():
        assert figures["accuracy"] == pytest.approx(0.5, abs=0.02)
        assert figures["accuracy_interval"][0] < 0.5 < figures["accuracy_interval"][1]


def test_a_unigram_model_is_right_in_half_of_the_story_pairs(tmp_path):
    texts = [story(5, index).text for index in range(250)]
    check_half_right(texts, True, write_bpe(tmp_path / "bpe", texts), kinds=4)


@pytest.mark.skipif(not C_SAMPLE.exists(), reason="needs ../shared/data/c-sample.parquet")
def test_a_unigram_model_is_right_in_half_of_the_pairs_of_real_code(tmp_path):
    texts = pq.read_table(C_SAMPLE)["content"].to_pylist()[:300]
    check_half_right(texts, False, write_bpe(tmp_path / "bpe", texts[:40], 2000), kinds=3)


@pytest.mark.parametrize("kind", ["bpe", "gemma-like"])
def test_both_words_are_encoded_whole_and_end_at_the_same_character(tmp_path, code, tokenizer, kind):
    chosen = tokenizer if kind == "bpe" else write_gemma_like(tmp_path / "gemma", tmp_path / "source")
    pairs = find_pairs(dict(enumerate(code)), False, 200, seed=1)
    for pair in pairs:
        context, right, wrong = encode_pair(pair, code[pair.document], chosen, 128)
        assert context[0] == chosen.eot_id and right[0] != wrong[0]
        of_right, of_wrong = (chosen.decode(context[1:] + word) for word in (right, wrong))
        text, end = code[pair.document], pair.character + len(pair.right)
        more = len(of_right) - end
        assert more >= 0 and of_right == text[: end + more]
        assert of_wrong == text[: pair.character] + pair.wrong + text[end : end + more]


def test_a_token_that_goes_on_after_the_word_is_scored_in_both_texts(tmp_path):
    merged = write_bpe(tmp_path / "bpe", ["f(x);\n" * 50], 260)
    assert merged.encode(");") == [merged.encode(");")[0]]
    pair = encode_pair(Pair(BRACKET, 0, 3, ")", "]"), "f(x);\n}", merged, 128)
    assert merged.decode(pair.right) == ");" and merged.decode(pair.wrong) == "];"
    pair = encode_pair(Pair(BRACKET, 0, 3, ")", "]"), "f(x) }\n", merged, 128)
    assert merged.decode(pair.right) == ")" and merged.decode(pair.wrong) == "]"


ENCODED = [
    EncodedPair([399, *range(1, length)], list(range(3, 3 + length % 3 + 1)), [7, 8][: 1 + length % 2])
    for length in (1, 2, 15, 16, 17, 31, 42)
]


@pytest.mark.parametrize("document_start_id", [None, 399])
def test_scores_are_the_losses_of_the_model_and_have_the_same_bits_in_any_batch(document_start_id, monkeypatch):
    model = build(400)
    model.document_start_id = document_start_id
    together = score_encoded(model, ENCODED)
    for threads in (1, 2):
        monkeypatch.setattr(minimal_pairs, "BATCH_TOKENS", 64 * threads)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        assert np.array_equal(score_encoded(model, ENCODED[::-1])[::-1], together)
        torch.set_num_threads(before)
    for (context, *words), nats in zip(ENCODED, together, strict=True):
        for word, expected in zip(words, nats, strict=True):
            ids = torch.tensor([context + word])
            with torch.inference_mode():
                losses = model.token_losses(ids[:, :-1], ids[:, 1:])[0]
            assert losses[len(context) - 1 :].sum().item() == pytest.approx(expected, rel=1e-5)


def test_the_table_has_a_row_for_each_pair_and_can_be_written(code, tokenizer):
    model, validation = build(tokenizer.vocab_size, max_seq_len=64), token_file(code, tokenizer)
    columns = score_pairs(model, validation, False, tokenizer, 64, 60, 1)
    table = pa.table(columns)
    assert table.column_names == ["kind", "document", "character", "right", "wrong", "right_nats", "wrong_nats"]
    rows = list(zip(*(table[name].to_pylist() for name in table.column_names[:5]), strict=True))
    assert len(rows) == 120 and rows == sorted(rows)
    assert all(code[document][character:].startswith(right) for _, document, character, right, _ in rows)
    assert set(summarize_pairs(columns)) == {BRACKET, IDENTIFIER}


NATS = {"right": 3.0, "tie": 2.0, "wrong": 1.0}  # of the wrong word; the right one has 2


def table(*outcomes: str, first_document=0, num_documents=10**6, wrong="she") -> pa.Table:
    """Return the table of a model: one place in each document, right, tie or wrong."""
    return pa.Table.from_pylist([
        {"kind": "pronoun", "document": (first_document + number) % num_documents, "character": number, "right": "he",
         "wrong": wrong, "right_nats": 2.0, "wrong_nats": NATS[outcome]}
        for number, outcome in enumerate(outcomes)
    ])  # fmt: skip


def summary(*outcomes: str, **options) -> dict:
    found = table(*outcomes, **options)
    return summarize_pairs({name: np.array(found[name].to_pylist()) for name in found.column_names})["pronoun"]


def test_a_tie_counts_one_half_and_the_interval_depends_on_the_documents():
    found = summary("right", "tie", "tie", "wrong", "right")
    assert found["pairs"] == found["documents"] == 5 and found["accuracy"] == pytest.approx(0.6)
    few, many = (summary(*["right"] * 500, num_documents=count) for count in (10, 250))
    assert few["accuracy"] == few["accuracy_interval"][1] == 1
    assert few["accuracy_interval"][0] < 0.8 < many["accuracy_interval"][0] < 1


def test_two_models_are_compared_on_the_pairs_that_both_have():
    a = table(*["right"] * 10, *["wrong"] * 8)
    b = table(*["right"] * 9, "wrong", *["right"] * 6, "tie", "wrong")
    figures = compare_pairs(a, b)["pronoun"]
    assert (figures["pairs"], figures["accuracy_a"], figures["accuracy_b"]) == (18, 10 / 18, 15.5 / 18)
    low, high = figures["difference_interval"]
    assert figures["difference"] == pytest.approx(5.5 / 18) == pytest.approx((low + high) / 2)
    assert compare_pairs(a, table("right", wrong="it")) == {}
    assert compare_pairs(a, a)["pronoun"]["p_after_holm"] is None


def test_the_pairs_of_a_document_count_as_one():
    rng = np.random.default_rng(1)
    a, b = (["right" if good else "wrong" for good in rng.random(120) < rate] for rate in (0.5, 0.6))
    few, many = (compare_pairs(table(*a, num_documents=n), table(*b, num_documents=n))["pronoun"] for n in (12, 120))
    repeated = [table(*outcomes * 9, num_documents=120) for outcomes in (a, b)]
    assert (few["documents"], many["documents"]) == (12, 120)
    assert compare_pairs(*repeated)["pronoun"]["p_after_holm"] == pytest.approx(many["p_after_holm"])
