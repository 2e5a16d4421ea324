"""Let tokens of similar spelling learn from each other: their embeddings share vectors of byte n-grams.

In training the embedding is E = table + S P, following fastText (Bojanowski et al. 2017, arXiv 1607.04606). P (K, C)
holds a learned vector for each of K buckets, to which n-grams are hashed. A row of S marks the n-grams of a token's
bytes, each with 1 / sqrt(number of them). E is linear in P. So only E is stored, and a step adds its change of P to E:
the model remains a Gemma 3, and nothing has to be merged at the end.
"""

import itertools
import zlib

import numpy as np
import torch
from torch import Tensor

from lm.exact.functions import sum_bags

LONGEST_NGRAM = 3  # bytes, a mark at each end of the token included
_BEGIN = b"\x02"  # the marks
_END = b"\x03"


class NgramEmbeddings:
    """The sparse matrix S (V, K) of V tokens and K buckets; a product with it adds rows one at a time."""

    def __init__(self, texts: dict[int, bytes], vocab_size: int, num_buckets: int):
        """texts: the bytes of each token; a token that is missing gets no n-grams."""
        # The rows of S: the buckets of each token in turn, where those of a token begin, and the value of its entries.
        buckets = [buckets_of(texts.get(token, b""), num_buckets) for token in range(vocab_size)]
        counts = torch.tensor([len(of_token) for of_token in buckets])
        self.buckets = torch.tensor(list(itertools.chain(*buckets)))
        self.bucket_starts = counts.cumsum(0) - counts  # (V,)
        roots = np.sqrt(counts.clamp(min=1).numpy())  # torch's are MKL's, which differ between processors
        self.scale = torch.from_numpy(1 / roots).float()[:, None]  # (V, 1)

        # The columns of S: the tokens of each bucket in turn, and where those of a bucket begin.
        order = self.buckets.argsort(stable=True)
        self.tokens = torch.arange(vocab_size).repeat_interleave(counts)[order]
        self.token_starts = torch.searchsorted(self.buckets[order], torch.arange(num_buckets))  # (K,)

    def to(self, device: torch.device) -> "NgramEmbeddings":
        """Move all tensors to the device."""
        self.buckets = self.buckets.to(device)
        self.bucket_starts = self.bucket_starts.to(device)
        self.scale = self.scale.to(device)
        self.tokens = self.tokens.to(device)
        self.token_starts = self.token_starts.to(device)
        return self

    def sum_buckets(self, changes: Tensor) -> Tensor:
        """Return S @ changes (V, C) of changes (K, C)."""
        return sum_bags(changes, self.buckets, self.bucket_starts).mul_(self.scale)

    def sum_tokens(self, gradient: Tensor) -> Tensor:
        """Return S^T @ gradient (K, C) of gradient (V, C)."""
        return sum_bags(gradient * self.scale, self.tokens, self.token_starts)


def buckets_of(text: bytes, num_buckets: int) -> list[int]:
    """Return the buckets of the n-grams of a token's bytes, ascending, each once."""
    if not text:
        return []
    marked = _BEGIN + text + _END
    ngrams = set()
    for n in range(1, LONGEST_NGRAM + 1):
        for start in range(len(marked) - n + 1):
            ngrams.add(marked[start : start + n])
    ngrams -= {_BEGIN, _END}  # a mark alone says nothing
    buckets = {zlib.crc32(ngram) % num_buckets for ngram in ngrams}
    return sorted(buckets)
