"""The probabilities of a model in exact numerics, as integers.

Logits and their softmax have the same bits on every processor, with any number of threads, and whether a window is
computed at once or token by token (lm.exact). Multiplication by 2^30 is exact. Rounding down gives integers, whose sum
does not depend on the order.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lm.evaluate.generation import KVCache
from lm.exact.cpu.products import multiply, pack
from lm.exact.functions import rows_of, softmax
from lm.model.gemma3 import Gemma3Model

SCALE = 2**30  # weight of probability 1; each token gets 1 more, so that none is impossible


class Predictor:
    """Compute the weights of the next token from hidden states. The head is packed once for all products."""

    def __init__(self, model: Gemma3Model):
        self.model = model
        self.head = pack(model.embed_tokens.weight.detach().mT)

    def weights(self, hidden: Tensor) -> Iterator[np.ndarray]:
        """Yield for each row of hidden states (N, C) the weights (V,) int64 of all tokens, each at least 1."""
        logits = hidden.new_empty(len(hidden), self.model.config.vocab_size)
        for row in multiply(rows_of(hidden), self.head, logits):
            probabilities = softmax(row).numpy().astype(np.float64)
            yield (probabilities * SCALE).astype(np.int64) + 1

    def last_hidden(self, inputs: list[int], cache: KVCache) -> Tensor:
        """Return the hidden state (1, C) of the last of `inputs`, the window so far; the cache has the earlier ones.

        A model that attends within documents still counts positions from the start of the window, so a cache cannot
        start at a later document. Once the window contains a second one, it is computed again for each token.
        """
        if self.model.document_start_id in inputs[1:]:
            return self.model.hidden(torch.tensor([inputs]))[:, -1]
        return self.model.hidden(torch.tensor([inputs[cache.num_tokens :]]), cache)[:, -1]
