"""Find tensors that a training step leaves on the CPU, without a GPU: on fake tensors, which have no numbers.

An operation on fakes of two devices raises, as on a GPU. torch's CPU build refuses to move a fake to `cuda`, so there
the device is `meta`, which knows no autocast and no fused AdamW. What asks for numbers cannot run on fakes: the
vocabulary is not sampled, and `float(tensor)` gives 1. Kernels, compiled blocks and the copy of a batch are not tested.
"""

import contextlib
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import adam
from torch.overrides import TorchFunctionMode

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.kernels import block_mask
from lm.model.score import token_losses
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState, named_tensors
from lm.train.step import compute_gradients, update_weights
from support.train_params import train_params
from support.workspace import MICRO_MODEL

DEVICE = "cuda" if torch.version.cuda else "meta"
# Functions with which Python asks a tensor for a number, and those that need all of it.
ASKS_FOR_NUMBER = (Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__, Tensor.item)
NEEDS_ALL = (Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.unique)


class Waits(TorchFunctionMode):
    """Answer 1 where Python asks a tensor for a number, and list what makes Python wait for a GPU."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_on_device = bool(args) and isinstance(args[0], Tensor) and args[0].device.type == DEVICE
        copies_to_device = func is Tensor.to and not is_on_device and torch.device(DEVICE) in args[1:]
        copies_from_device = is_on_device and func in ASKS_FOR_NUMBER + NEEDS_ALL
        if copies_to_device or copies_from_device:
            self.found.append(func.__name__)
        if func in ASKS_FOR_NUMBER:
            return 1.0
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Let a step run on `meta` where torch has no CUDA."""
    import torch._dynamo  # its tables must hold torch's own functions, before one is replaced

    if DEVICE == "meta":
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
        monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: contextlib.nullcontext())
        monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *arguments, **options: None)


class Steps(NamedTuple):
    """What was seen in two steps and a validation."""

    devices: set[str]  # kinds of devices of the tensors in the state at the end
    waits: list[str]  # what the second step waits for


def run_steps(optimizer: str, document_start_id: int | None) -> Steps:
    """Run two steps and a validation."""
    params = train_params(numerics="fast", optimizer=optimizer, batch_tokens=64, micro_batch_tokens=32)
    with FakeTensorMode(), Waits() as waits:
        model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
        model.document_start_id = document_start_id
        move_weights(model)
        state = TrainingState(model, build_optimizers(model, params, torch.bfloat16))
        ids = torch.zeros(4, 16, dtype=torch.int64, device=DEVICE)

        for _ in range(2):
            waits.found.clear()
            compute_gradients(state, (ids, ids), params, torch.bfloat16)
            update_weights(state, 0.1)
        waits_of_step = list(waits.found)
        token_losses(model, ids, ids)

        devices = {tensor.device.type for _, tensor in named_tensors(state.as_dict())}
        return Steps(devices, waits_of_step)


def move_weights(model: nn.Module) -> None:
    """Do what `model.to(DEVICE)` does, which a fake tensor refuses."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.detach().to(DEVICE)))


@pytest.mark.parametrize(
    ("optimizer", "document_start_id"),
    [
        ("muon", None),
        pytest.param("adamw", 0, marks=pytest.mark.slow),
    ],
)
def test_a_step_leaves_no_tensor_on_the_cpu_and_waits_for_the_gpu_once(optimizer, document_start_id):
    """It waits for the loss and the norm of the gradient together, in whatever number of micro-batches."""
    steps = run_steps(optimizer, document_start_id)

    assert steps.devices == {DEVICE}
    assert steps.waits == ["item", "item"], "one `tolist` of both numbers"


def test_block_masks_wait_for_nothing():
    with FakeTensorMode(), Waits() as waits:
        documents = torch.zeros(4, 300, dtype=torch.int64, device=DEVICE)
        mask = block_mask(documents, 40)

    assert waits.found == []
    tensors = [part for part in mask.as_tuple() if isinstance(part, Tensor)]
    assert {tensor.device.type for tensor in tensors} == {DEVICE}
