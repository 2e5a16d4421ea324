"""Shared n-grams: both products are those of one matrix, and the embedding is the table plus S P."""

import zlib

import pytest
import torch

from lm.train.ngram_embeddings import NgramEmbeddings, buckets_of
from lm.train.optimizers import NgramAdamW

TEXTS = {0: b"a", 1: b" tensor", 2: b"tensor", 3: b"x" * 40, 5: bytes([255])}  # 4 is special
VOCAB_SIZE = 6
NUM_BUCKETS = 16
WIDTH = 8


def dense_matrix() -> torch.Tensor:
    """Return S (V, K), made by its definition."""
    matrix = torch.zeros(VOCAB_SIZE, NUM_BUCKETS)
    for token, text in TEXTS.items():
        buckets = buckets_of(text, NUM_BUCKETS)
        matrix[token, buckets] = len(buckets) ** -0.5
    return matrix


@pytest.mark.parametrize(
    ("text", "ngrams"),
    [
        # One to three bytes, with a mark < > at each end of the token, but no mark alone; each once.
        ("a", "a <a a> <a>"),
        ("aaa", "a <a aa a> <aa aaa aa>"),
        ("abcd", "a b c d <a ab bc cd d> <ab abc bcd cd>"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("num_buckets", [1 << 20, 7])
def test_the_buckets_of_a_token_are_those_of_its_short_ngrams(text, ngrams, num_buckets):
    buckets = set()
    for ngram in ngrams.split():
        content = ngram.replace("<", "\2").replace(">", "\3").encode()
        buckets.add(zlib.crc32(content) % num_buckets)

    assert buckets_of(text.encode(), num_buckets) == sorted(buckets)


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_the_embedding_is_the_table_plus_s_p_also_after_a_restart(numerics):
    table = torch.randn(VOCAB_SIZE, WIDTH)
    embedding = torch.nn.Parameter(table.clone())
    ngrams = NgramEmbeddings(TEXTS, VOCAB_SIZE, NUM_BUCKETS)
    optimizer = NgramAdamW(embedding, ngrams, (0.8, 0.999), numerics=numerics)
    # The same with a matrix S and torch's AdamW of P, at half of the learning rate.
    matrix = dense_matrix()
    p = torch.nn.Parameter(torch.zeros(NUM_BUCKETS, WIDTH))
    plain = torch.optim.AdamW([p], lr=0.01 / 2, betas=(0.8, 0.999), weight_decay=0.0)

    for step in range(4):
        if step == 2:
            saved = optimizer.state_dict()
            optimizer = NgramAdamW(embedding, ngrams, (0.8, 0.999), numerics=numerics)
            optimizer.load_state_dict(saved)
        optimizer.param_groups[0]["lr"] = 0.01 * optimizer.param_groups[0]["lr_factor"]
        embedding.grad = torch.randn(VOCAB_SIZE, WIDTH)
        p.grad = matrix.T @ embedding.grad
        plain.step()
        optimizer.step()

    torch.testing.assert_close(embedding.detach(), table + matrix @ p.detach())
