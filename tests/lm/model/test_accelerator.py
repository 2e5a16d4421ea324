"""Test what a step does on a GPU, without one: on tensors of torch's device "meta", and with fakes."""

import pytest
import torch
import torch._dynamo  # its tables must hold torch's own functions, before a test replaces one
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.model.accelerator import copy_to, has_block_masks
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.train.batches import to_device
from lm.train.optimizers import Muon
from support.workspace import MICRO_MODEL


class Float64Finder(TorchDispatchMode):
    """Collect the operations that make a float64 tensor."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if any(isinstance(each, torch.Tensor) and each.dtype == torch.float64 for each in tree_leaves(made)):
            self.found.append(str(func))
        return made


@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_on_a_gpu_makes_no_float64_tensor_which_apple_does_not_have(monkeypatch, document_start_id):
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


def test_the_finder_sees_float64():
    with Float64Finder() as finder:
        torch.ones(2).double()
    assert finder.found != []


class Recorder:
    """A tensor that writes down how it is copied."""

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pinned")
        return self

    def to(self, device, non_blocking=False):
        self.calls.append((device.type, non_blocking))
        return self


@pytest.mark.parametrize(("kind", "calls"), [("cuda", ["pinned", ("cuda", True)]), ("mps", [("mps", False)])])
def test_batches_are_copied_in_the_background_on_cuda_only(kind, calls):
    assert copy_to(Recorder(), torch.device(kind)).calls == calls


def test_a_batch_reaches_a_device_that_is_not_the_cpu():
    x, y = to_device(torch.arange(12).view(3, 4).numpy(), "meta")
    assert (x.device.type, y.device.type, x.shape, y.shape) == ("meta", "meta", (3, 3), (3, 3))


def test_an_apple_gpu_takes_dense_masks():
    assert [has_block_masks(torch.device(kind)) for kind in ("cuda", "mps", "cpu")] == [True, False, False]


def test_torch_has_a_fused_adamw_and_autocast_for_apple():
    assert "mps" in _get_fused_kernels_supported_devices()
    assert torch.amp.is_autocast_available("mps")
