"""The models that speed/gpu.py trains, each with its optimizers and made-up text."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import torch
from torch import Tensor

from lm.core.numerics import Numerics
from lm.core.params import read_section
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.tokens.windows import TokenWindows
from lm.train import step
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from result import ROOT
from tools.verify.golden_run import make_ids


class Case(NamedTuple):
    """A model and its steps, each of one micro-batch."""

    preset: str
    vocab_size: int
    seq_len: int
    batch_size: int


CASES = [
    Case("tiny", 16_384, 256, 256),
    Case("gpt2_size", 50_257, 1024, 32),
    Case("gemma3_270m", 262_144, 1024, 16),
]
EXACT_CASES = [Case("tiny", 16_384, 256, 8), Case("gpt2_size", 50_257, 1024, 16)]
QUICK_CASES = [Case("tiny", 1000, 32, 4)]
NUM_TEXT_TOKENS = 2_000_000


class Arithmetic(NamedTuple):
    """How a model computes."""

    numerics: Numerics
    dtype: str
    compiled: bool


EXACT = Arithmetic("exact", "auto", False)
FLOAT32 = Arithmetic("fast", "float32", False)
FAST = Arithmetic("fast", "auto", True)
FAST_EAGER = Arithmetic("fast", "auto", False)


def train_params(case: Case, num_steps: int, arithmetic: Arithmetic) -> TrainParams:
    """Return the parameters of the default in an arithmetic, with batches of one micro-batch."""
    params = read_section(ROOT / "params.yaml", "train", TrainParams)
    tokens = case.seq_len * case.batch_size
    return dataclasses.replace(
        params,
        seq_len=case.seq_len,
        batch_tokens=tokens,
        micro_batch_tokens=tokens,
        max_tokens=tokens * num_steps,
        warmup_steps=num_steps // 10 + 1,
        numerics=arithmetic.numerics,
        dtype=arithmetic.dtype,
        compile=arithmetic.compiled,
        sampled_vocab_size=None,
        ngram_buckets=None,
    )


class Start(NamedTuple):
    """A run before its first step."""

    params: TrainParams
    config: ModelConfig
    dtype: torch.dtype
    state: TrainingState
    batches: Iterator[tuple[Tensor, Tensor]]


def start_run(case: Case, num_steps: int, device: torch.device, arithmetic: Arithmetic) -> Start:
    """Build the model of a case, its optimizers, and the batches of made-up text."""
    torch.compiler.reset()  # a graph of an earlier model would make those of this one take any shape
    params = train_params(case, num_steps, arithmetic)
    config = read_section(ROOT / "presets.yaml", f"models.{case.preset}", ModelParams).config(case.vocab_size)
    dtype = torch.float32 if params.numerics == "exact" else machine.resolve_dtype(params.dtype, device)
    model = Gemma3Model(config, params.numerics)
    model.init_weights(torch.Generator().manual_seed(params.seed))
    model.to(device)
    if params.compile:
        model.compile()
    state = TrainingState(model, build_optimizers(model, params, dtype))
    ids = make_ids(min(case.vocab_size, 1 << 16), NUM_TEXT_TOKENS)
    windows = TokenWindows(ids, case.seq_len, case.batch_size, params.seed)
    return Start(params, config, dtype, state, step.prefetch(windows, range(num_steps), device))
