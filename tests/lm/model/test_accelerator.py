"""Test what a step does on a GPU, without one: on tensors of torch's device "meta", and with fakes."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.train.optimizers import Muon
from support.workspace import MICRO_MODEL


class Float64Finder(TorchDispatchMode):
    """Collect the operations that make a float64 tensor on a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor)]
        if any(each.dtype == torch.float64 and each.device.type != "cpu" for each in tensors):
            self.found.append(str(func))
        return made


@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_on_a_gpu_makes_no_float64_tensor(monkeypatch, document_start_id):
    import torch._dynamo  # its tables must hold torch's own functions, before one is replaced

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # torch knows no autocast for meta
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50)).to("meta")
    model.document_start_id = document_start_id
    muon = Muon([p for p in model.layers.parameters() if p.ndim == 2], lr=0.1, weight_decay=0.1, dtype=torch.bfloat16)
    ids = torch.zeros(2, 16, dtype=torch.int64, device="meta")
    with Float64Finder() as finder:
        loss = model.loss(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step()
        model.token_losses(ids, ids)
        assert loss.device.type == "meta" and finder.found == []
        torch.ones(2, device="meta").double()
    assert finder.found != [], "it would see one"
