"""A score is that of a model which forgets each window: what it read before does not change a loss."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.core.errors import IntegrityError
from lm.evaluate.scoring import score
from lm.exact.threads import ThreadTuner
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

EOT = 99
SEQ_LEN = 32


def stream() -> TokenFile:
    ids = np.random.default_rng(1).integers(0, EOT, 40 * SEQ_LEN).astype(np.uint16)
    return TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": EOT}})


def with_memory(numerics: str):
    """Return a model that knows the token after each pair of tokens which it read before, except in equal rows."""
    model = build(100, numerics=numerics)
    hidden = model.hidden
    seen = {}

    def remember(ids, *others):
        h = hidden(ids, *others)
        if len(ids) < 2 or torch.equal(ids[0], ids[1]):
            return h
        h = h.clone()
        for row, window in enumerate(ids.tolist()):
            for position, pair in enumerate(itertools.pairwise(window), start=1):
                if pair in seen:
                    h[row, position] += model.embed_tokens.weight[seen[pair]]
        for window in ids.tolist():
            for first, second, third in zip(window, window[1:], window[2:], strict=False):
                seen[first, second] = third
        return h

    model.hidden = remember
    return model


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_model_that_remembers_the_windows_of_earlier_batches_is_found(numerics):
    model = with_memory(numerics)

    with torch.no_grad(), pytest.raises(IntegrityError, match="the model remembers what it read"):
        score(model, stream(), SEQ_LEN, SEQ_LEN // 2, ThreadTuner(numerics, adapts=False))
