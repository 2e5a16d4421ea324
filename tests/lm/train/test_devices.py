"""Find tensors that a training step leaves on the CPU, without a GPU: on fake tensors, which have no numbers.

An operation on fakes of two devices raises, as on a GPU. torch's CPU build refuses to move a fake to `cuda`, so there
the device is `meta`, which knows no autocast and no fused AdamW. What asks for numbers cannot run on fakes: the
vocabulary is not sampled, and `float(tensor)` gives 1. Kernels, compiled blocks and the copy of a batch are not tested.
"""

import contextlib
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import adam
from torch.overrides import TorchFunctionMode

from lm.core.params import read_section
from lm.model import gemma3, kernels
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState, named_tensors
from lm.train.step import compute_gradients, update_weights
from support import ROOT
from support.workspace import MICRO_MODEL

DEVICE = "cuda" if torch.version.cuda else "meta"
CHANGES = {"numerics": "fast", "seq_len": 16, "batch_tokens": 64, "micro_batch_tokens": 32, "sampled_vocab_size": None}


class Ones(TorchFunctionMode):
    """Answer 1 where Python asks a tensor for its number."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return 1.0 if func in (Tensor.__float__, Tensor.item) else func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Let a step run on `meta` where torch has no CUDA."""
    if DEVICE == "meta":
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
        monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: contextlib.nullcontext())
        monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *arguments, **options: None)


def devices_after_a_step(optimizer: str, document_start_id: int | None) -> set[str]:
    """Run a step and a validation; return the kinds of devices of all that the state holds."""
    params = dataclasses.replace(
        read_section(ROOT / "params.yaml", "train", TrainParams), optimizer=optimizer, **CHANGES
    )
    with FakeTensorMode(), Ones():
        model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
        model.document_start_id = document_start_id
        for module in model.modules():  # as `model.to` does, which a fake refuses
            for name, weight in [*module.named_parameters(recurse=False)]:
                setattr(module, name, nn.Parameter(weight.detach().to(DEVICE)))
        state = TrainingState(model, build_optimizers(model, params, torch.bfloat16))
        ids = torch.zeros(4, 16, dtype=torch.int64, device=DEVICE)
        compute_gradients(state, (ids, ids), params, torch.bfloat16)
        update_weights(state, 0.1)
        model.token_losses(ids, ids)
        return {tensor.device.type for _, tensor in named_tensors(state.as_dict())}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("document_start_id", [None, 0])
def test_a_step_leaves_no_tensor_on_the_cpu(optimizer, document_start_id):
    assert devices_after_a_step(optimizer, document_start_id) == {DEVICE}


@pytest.mark.parametrize("function", ["rotary_table", "visible"])
def test_a_tensor_on_the_cpu_is_found(monkeypatch, function):
    module = gemma3 if function == "rotary_table" else kernels
    made = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *arguments: made(*arguments[:-1], torch.device("cpu")))
    with pytest.raises(RuntimeError, match="device"):
        devices_after_a_step("muon", None)
