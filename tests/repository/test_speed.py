"""What keeps training small."""

import dataclasses

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lm.model.gemma3 import MAX_LOGITS, Gemma3Model
from support.model_cases import build


class Largest(TorchDispatchMode):
    """Note the elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        results = result if isinstance(result, tuple | list) else [result]
        for each in results:
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def test_the_logits_of_the_loss_are_bounded():
    """The (B·T, V) logits never exist at once, forward or backward. Fake tensors have a shape and need no memory."""
    B, T, vocab_size = 64, 64, 50_257
    assert B * T * vocab_size > MAX_LOGITS
    config = dataclasses.replace(build(300).config, vocab_size=vocab_size)

    with FakeTensorMode():
        model = Gemma3Model(config)
        ids = torch.zeros(B, T, dtype=torch.int64)
        with Largest() as found:
            model.loss(ids, ids).backward()

    rows = min(MAX_LOGITS // vocab_size, B * T)
    assert found.elements == rows * vocab_size
    assert found.elements <= MAX_LOGITS
