"""The models that speed/gpu.py trains, ours and those of others, each with its optimizer and made-up text."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import torch
import torch.nn.functional as F
from nanogpt import GPT, GPT2, Size
from torch import Tensor, nn

from harness import ROOT
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
from tools.common.models import hugging_face_config, to_hugging_face
from tools.prove.golden_run import make_ids


class Case(NamedTuple):
    """A model and its steps, each of one micro-batch."""

    preset: str
    vocab_size: int
    seq_len: int
    batch_size: int
    model: str = "ours"  # or a peer: "nanogpt" | "transformers"
    optimizer: str = "muon"


CASES = [
    Case("tiny", 16_384, 256, 256),
    Case("gpt2_size", 50_257, 1024, 32),
    Case("gemma3_270m", 262_144, 1024, 16),
]
PEERS = [
    Case("gpt2_size", 50_257, 1024, 32, "ours", "adamw"),
    Case("gpt2_size", 50_304, 1024, 32, "nanogpt", "adamw"),  # nanoGPT pads the vocabulary
    Case("gemma3_270m", 262_144, 1024, 16, "transformers"),
]
EXACT_CASES = [Case("tiny", 16_384, 256, 8), Case("gpt2_size", 50_257, 1024, 16)]
QUICK_CASES = [Case("tiny", 1000, 32, 4)]
QUICK_PEERS = [
    Case("tiny", 1000, 32, 4, "ours", "adamw"),
    Case("tiny", 1000, 32, 4, "nanogpt", "adamw"),
    Case("tiny", 1000, 32, 4, "transformers"),
]
QUICK_GPT = Size(num_layers=2, num_heads=2, width=32, block=32)
# nanoGPT's values for GPT-2 (124M); the others are those of params.yaml.
ADAMW = {"optimizer": "adamw", "peak_lr": 6e-4, "min_lr": 6e-5, "beta1": 0.9, "beta2": 0.95, "schedule": "cosine"}
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
    if case.optimizer == "adamw":
        params = dataclasses.replace(params, **ADAMW)
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


class Peer(nn.Module):
    """A model of others, which our steps train; its mean loss (ids, targets) is compiled as a whole."""

    def __init__(self, model: nn.Module, mean_loss: Callable[[nn.Module, Tensor, Tensor], Tensor], is_compiled: bool):
        super().__init__()
        self.model = model
        self.mean_loss = torch.compile(mean_loss) if is_compiled else mean_loss

    def loss(self, ids: Tensor, targets: Tensor, draws: None) -> Tensor:
        """Return the mean nats of targets (B, T) after ids (B, T)."""
        return self.mean_loss(self.model, ids, targets)


def gpt_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean nats of a GPT, as nanoGPT computes them."""
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def transformers_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean nats of a model of transformers."""
    targets = targets.contiguous()
    return model(input_ids=ids, labels=targets, shift_labels=targets, use_cache=False).loss


def build_model(case: Case, config: ModelConfig, params: TrainParams, device: torch.device) -> nn.Module:
    """Return the model of a case on the device; ours and transformers' have the same weights."""
    if case.model == "nanogpt":
        torch.manual_seed(params.seed)
        size = GPT2 if case.preset == "gpt2_size" else QUICK_GPT
        return Peer(GPT(case.vocab_size, size), gpt_loss, params.compile).to(device)
    ours = Gemma3Model(config, params.numerics)
    ours.init_weights(torch.Generator().manual_seed(params.seed))
    if case.model == "transformers":
        transformers = importlib.import_module("transformers")  # the file is written without it
        theirs = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**hugging_face_config(config)))
        missing, unexpected = theirs.load_state_dict(to_hugging_face(ours.state_dict()), strict=False)
        assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
        theirs.tie_weights()
        return Peer(theirs, transformers_loss, params.compile).to(device)
    ours.to(device)
    if params.compile:
        ours.compile()
    return ours


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
    model: Any = build_model(case, config, params, device)
    state = TrainingState(model, build_optimizers(model, params, dtype))
    ids = make_ids(min(case.vocab_size, 1 << 16), NUM_TEXT_TOKENS)
    windows = TokenWindows(ids, case.seq_len, case.batch_size, params.seed)
    return Start(params, config, dtype, state, step.prefetch(windows, range(num_steps), device))
