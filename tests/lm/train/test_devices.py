"""Find tensors that a training step leaves on the CPU, without a GPU: on fake tensors, which have no numbers.

An operation on fakes of two devices raises, as on a GPU. torch's CPU build refuses to move a fake to `cuda`, so there
the device is `meta`, which knows no autocast and no fused AdamW. What asks for numbers cannot run on fakes: the
vocabulary is not sampled, and `float(tensor)` gives 1. Kernels, compiled blocks and the copy of a batch are not tested.
"""

import contextlib

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import adam
from torch.overrides import TorchFunctionMode

from lm.model import gemma3, kernels
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.kernels import block_mask
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState, named_tensors
from lm.train.step import compute_gradients, update_weights
from support.train_params import train_params
from support.workspace import MICRO_MODEL

DEVICE = "cuda" if torch.version.cuda else "meta"
NUMBERS = (Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__, Tensor.item)
WHOLE = (Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.unique)


class Waits(TorchFunctionMode):
    """Answer 1 where Python asks a tensor for numbers, and list what makes Python wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        on_device = bool(args) and isinstance(args[0], Tensor) and args[0].device.type == DEVICE
        copies_to_device = func is Tensor.to and not on_device and torch.device(DEVICE) in args[1:]
        if copies_to_device or (on_device and func in NUMBERS + WHOLE):
            self.found.append(func.__name__)
        return 1.0 if func in NUMBERS else func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Let a step run on `meta` where torch has no CUDA."""
    import torch._dynamo  # its tables must hold torch's own functions, before one is replaced

    if DEVICE == "meta":
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
        monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: contextlib.nullcontext())
        monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *arguments, **options: None)


def devices_after_a_step(optimizer: str, document_start_id: int | None) -> tuple[set[str], list[str]]:
    """Run two steps and a validation; return the kinds of devices in the state, and what the second step waits for."""
    params = train_params(numerics="fast", optimizer=optimizer, batch_tokens=64, micro_batch_tokens=32)
    with FakeTensorMode(), Waits() as waits:
        model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
        model.document_start_id = document_start_id
        for module in model.modules():  # as `model.to` does, which a fake refuses
            for name, weight in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(weight.detach().to(DEVICE)))
        state = TrainingState(model, build_optimizers(model, params, torch.bfloat16))
        ids = torch.zeros(4, 16, dtype=torch.int64, device=DEVICE)
        for _ in range(2):
            waits.found.clear()
            compute_gradients(state, (ids, ids), params, torch.bfloat16)
            update_weights(state, 0.1)
        found = list(waits.found)
        model.token_losses(ids, ids)
        return {tensor.device.type for _, tensor in named_tensors(state.as_dict())}, found


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_leaves_no_tensor_on_the_cpu(optimizer, document_start_id):
    devices, _ = devices_after_a_step(optimizer, document_start_id)
    assert devices == {DEVICE}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_step_waits_for_the_gpu_once(optimizer):
    """For the loss and the norm of the gradient together, in whatever number of micro-batches."""
    _, waits = devices_after_a_step(optimizer, 0)
    assert waits == ["item"] * 2  # a fake's `tolist` of both numbers


def test_block_masks_wait_for_nothing():
    with FakeTensorMode(), Waits() as waits:
        documents = torch.zeros(4, 300, dtype=torch.int64, device=DEVICE)
        mask = block_mask(documents, 40)
    assert waits.found == []
    assert {part.device.type for part in mask.as_tuple() if isinstance(part, Tensor)} == {DEVICE}


def test_what_waits_for_the_gpu_is_seen():
    with FakeTensorMode(), Waits() as waits:
        there = torch.ones(1).to(torch.device(DEVICE))
        float(there)
        there.tolist()
        there.cpu()
    assert waits.found == ["to", "__float__", "item", "cpu"]


@pytest.mark.parametrize("function", ["rotary_table", "visible"])
def test_a_tensor_on_the_cpu_is_found(monkeypatch, function):
    module = gemma3 if function == "rotary_table" else kernels
    made = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *arguments: made(*arguments[:-1], torch.device("cpu")))
    with pytest.raises(RuntimeError, match="device"):
        devices_after_a_step("muon", None)
