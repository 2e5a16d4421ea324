"""What is said about a run before it starts: its size, the memory it needs, suspicious settings."""

import dataclasses
import re
import shutil
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lm.core.errors import EnvironmentFailure
from lm.core.params import read_section
from lm.model.config import ModelParams
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.train.config import TrainParams
from lm.train.preflight import (
    Plan,
    activation_bytes,
    check_memory,
    reject_missing_compiler,
    warnings,
)
from support import ROOT
from support.train_params import train_params
from support.workspace import MICRO_MODEL

LENGTHS = {"seq_len": 32, "batch_tokens": 256, "micro_batch_tokens": 128, "max_tokens": 25_700}


def model_config(vocab_size: int = 50, **changes) -> ModelConfig:
    return ModelConfig(**MICRO_MODEL | changes, vocab_size=vocab_size)


def plan_of(train_tokens: int = 3200, **changes) -> tuple[Plan, TrainParams]:
    """Return the plan of a run of 100 steps of 256 tokens, and its parameters."""
    params = train_params(**LENGTHS | {"optimizer": "adamw"} | changes)
    return Plan(params, model_config(), train_tokens, params.micro_batch_tokens), params


def test_suspicious_settings_are_warned_of():
    plan, params = plan_of(train_tokens=3200)
    assert warnings(plan, params, model_config(sliding_window=31)) == []

    more_epochs, _ = plan_of(train_tokens=3199)
    (of_epochs,) = warnings(more_epochs, params, model_config(sliding_window=31))
    (of_window,) = warnings(plan, params, model_config(sliding_window=32))

    assert "8.0 epochs" in of_epochs
    assert "sliding attention is never active" in of_window


def preset(name: str, vocab_size: int) -> ModelConfig:
    """Return the shape of a model of presets.yaml."""
    return read_section(ROOT / "presets.yaml", f"models.{name}", ModelParams).config(vocab_size)


PRESETS = {
    "tiny": preset("tiny", vocab_size=16_384),
    "gpt2_size": preset("gpt2_size", vocab_size=50_257),
    "gemma3_270m": preset("gemma3_270m", vocab_size=262_144),
}


def saved_bytes(model: Gemma3Model, ids: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the bytes of all that the blocks save for the backward pass, but for the weights, also rounded ones."""
    saved = {}  # identity of a storage, which several tensors may share → the storage
    weight_shapes = {weight.shape for weight in model.parameters()}
    weight_shapes |= {weight.shape[::-1] for weight in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if tensor.shape not in weight_shapes:
            saved[storage._cdata] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        model.hidden(ids)
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize(
    ("name", "seq_len", "dtype"),
    [
        ("gpt2_size", 1024, torch.bfloat16),
        ("gemma3_270m", 1024, torch.float32),
    ],
)
def test_the_estimate_of_activations_is_what_a_step_saves(name, seq_len, dtype):
    """On fake tensors, which have no numbers."""
    config = dataclasses.replace(PRESETS[name], n_layer=6, max_seq_len=1024)

    estimate = activation_bytes(config, 4 * seq_len, seq_len, "fast", "cpu", dtype)

    with FakeTensorMode():
        ids = torch.zeros(4, seq_len, dtype=torch.int64)
        saved = saved_bytes(Gemma3Model(config), ids, dtype)
    assert saved == pytest.approx(estimate, rel=0.25)


def test_a_run_that_needs_more_than_is_free_is_rejected_or_on_a_gpu_warned_of():
    plan, _ = plan_of()

    for device in ("cpu", "cuda"):
        assert check_memory(plan, device, plan.memory_bytes) == []
    with pytest.raises(EnvironmentFailure, match=r"lower train\.micro_batch_tokens"):
        check_memory(plan, "cpu", plan.memory_bytes - 1)
    (warning,) = check_memory(plan, "cuda", plan.memory_bytes - 1)
    assert "lower train.micro_batch_tokens" in warning


@pytest.mark.parametrize(
    ("device", "numerics", "is_compiled", "found", "missing"),
    [
        ("cpu", "exact", False, None, None),
        ("cpu", "fast", True, "gcc", "C++ compiler was found (CXX, g++"),
        ("cuda", "exact", False, "my-cc", None),
        ("cuda", "fast", True, "g++", "C compiler was found (CC, gcc"),
    ],
)
def test_the_compiler_that_a_run_needs_is_asked_for(monkeypatch, device, numerics, is_compiled, found, missing):
    monkeypatch.setattr(shutil, "which", lambda name: name if name == found else None)
    monkeypatch.setenv("CC", "my-cc")
    params = train_params(numerics=numerics, compile=is_compiled)
    refusal = pytest.raises(EnvironmentFailure, match=re.escape(missing)) if missing else nullcontext()

    with refusal:
        reject_missing_compiler(params, torch.device(device))
