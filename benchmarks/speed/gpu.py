"""What a GPU reaches: training steps of some models in both numerics, in one JSON file that its owner can send.

    make bench-gpu                                                     # eight minutes at most
    PYTHONPATH=src:benchmarks python benchmarks/speed/gpu.py --quick   # a small model, also on a CPU

For each model: tokens per second, the share of the measured peak of matrix products (MFU), the most memory, how often
a step makes Python wait for the GPU, and the loss after the last step. The steps are those of the stage `train`:

- `models`, 200 steps in fast numerics: Muon, compiled blocks, bfloat16 where the device has it. The text is made up and
  the same everywhere, so the losses of two devices should agree within 0.01 nats.
- `peers`, 200 steps of the same text: gpt2_size with AdamW beside nanoGPT's model (speed/nanogpt.py) at the
  same rates of learning, and transformers' Gemma 3 270M from the same weights with the same optimizers. The peers are
  compiled as a whole, their loss included; of what is not installed or does not fit, the sentence of the error is kept.
- `exact`, 12 steps in exact numerics, and the same steps in torch's own float32 without TF32. The digest of the state
  after them is the same on every device.
- `products`: the rate of products in exact numerics, and of torch's (cuBLAS) in float32.

A model that would begin after 400 s is left out. Writes gpu.json into the folder of the command line.
"""

import argparse
import dataclasses
import gc
import importlib
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import torch
import torch.nn.functional as F
from nanogpt import GPT, GPT2, Size
from torch import Tensor, nn

from harness import ROOT, hardware, versions
from lm.core.files import write_json
from lm.core.numerics import Numerics
from lm.core.params import read_section
from lm.exact.functions import kernels_of
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, flops_per_token
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
LATEST_START_S = 400  # a model takes about a minute
PRODUCTS = [  # rows, terms and columns: of weights of gpt2_size, of their gradients, and of its head
    (16_384, 768, 3072),
    (16_384, 3072, 768),
    (16_384, 768, 768),
    (768, 16_384, 3072),
    (5120, 768, 50_257),
    (5120, 50_257, 768),
    (50_257, 5120, 768),
]
QUICK_PRODUCTS = [(64, 32, 48)]
PRODUCT_S = 0.3  # for which a product is repeated
NUM_STEPS = 200
QUICK_STEPS = 8
NUM_EXACT_STEPS = 12
WARMUP_STEPS = 3  # of the clock: they compile the blocks
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


def count_waits(run_step) -> int | None:
    """Return how often a step makes Python wait for the GPU, as torch reports it; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run_step()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in found)


def measure(case: Case, num_steps: int, device: torch.device, arithmetic: Arithmetic) -> dict:
    """Train a model for `num_steps` steps; return what was measured."""
    # Build the model, its optimizers and its batches.
    torch.compiler.reset()  # a graph of an earlier model would make those of this one take any shape
    params = train_params(case, num_steps, arithmetic)
    seq_len = case.seq_len
    batch_size = case.batch_size
    vocab_size = case.vocab_size
    config = read_section(ROOT / "presets.yaml", f"models.{case.preset}", ModelParams).config(vocab_size)
    is_exact = params.numerics == "exact"
    dtype = torch.float32 if is_exact else machine.resolve_dtype(params.dtype, device)
    model: Any = build_model(case, config, params, device)
    state = TrainingState(model, build_optimizers(model, params, dtype))
    windows = TokenWindows(make_ids(min(vocab_size, 1 << 16), NUM_TEXT_TOKENS), seq_len, batch_size, params.seed)
    batches = step.prefetch(windows, range(num_steps), device)

    # Take the steps; the clock starts after the first ones.
    losses: list[float] = []

    def run_step() -> None:
        """Take one step of the run."""
        loss, _ = step.compute_gradients(state, next(batches), params, dtype)
        step.update_weights(state, step.learning_rate(state.step, params))
        losses.append(loss)

    for _ in range(WARMUP_STEPS):
        run_step()
    num_waits = count_waits(run_step)
    machine.synchronize(device)
    start = time.perf_counter()
    num_timed = num_steps - state.step
    for _ in range(num_timed):
        run_step()
    machine.synchronize(device)
    seconds = time.perf_counter() - start

    # Compare to the peak, measured now.
    tokens_per_s = num_timed * params.batch_tokens / seconds
    flops_per_s = tokens_per_s * flops_per_token(config, seq_len)["total"]
    peak = machine.matmul_peak_flops(device, dtype)
    is_gemma = case.model != "nanogpt"  # whose FLOP are counted
    is_gpu = device.type == "cuda"
    return {
        "model": case.preset,
        "implementation": case.model,
        "optimizer": params.optimizer,
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocab_size": vocab_size,
        "seq_len": seq_len,
        "batch_tokens": params.batch_tokens,
        "steps": num_steps,
        "dtype": str(dtype).removeprefix("torch."),
        "numerics": params.numerics,
        "compiled": params.compile,
        "tokens_per_s": round(tokens_per_s),
        "share_of_peak": round(flops_per_s / peak, 3) if is_gemma else None,
        "peak_tflops": round(peak / 1e12, 2),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if is_gpu else None,
        "waits_per_step": num_waits,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "digest": state.digest() if is_exact else None,
    }


def measure_product(num_rows: int, num_terms: int, num_columns: int, device: torch.device) -> dict:
    """Return the rates of a product in exact numerics and of torch's."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(num_rows, num_terms, generator=generator).to(device)
    b = torch.randn(num_terms, num_columns, generator=generator).to(device)
    packed = kernels_of(a).pack(b)
    out = torch.empty(num_rows, num_columns, device=device)
    flops = 2 * num_rows * num_terms * num_columns
    exact = flops / fastest_s(lambda: kernels_of(a).multiply(a, packed, out), device)
    torchs = flops / fastest_s(lambda: torch.mm(a, b, out=out), device)
    return {
        "shape": [num_rows, num_terms, num_columns],
        "exact_tflops": round(exact / 1e12, 2),
        "torch_tflops": round(torchs / 1e12, 2),
        "ratio": round(exact / torchs, 3),
    }


def fastest_s(compute: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of several calls."""
    compute()
    best = math.inf
    end = time.perf_counter() + PRODUCT_S
    while time.perf_counter() < end:
        machine.synchronize(device)
        start = time.perf_counter()
        compute()
        machine.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Measure each model and write the file."""
    parser = argparse.ArgumentParser(description="Training steps of some models on this GPU.")
    parser.add_argument("--quick", action="store_true", help="one small model and few steps, also on a CPU")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for gpu.json (.)")
    args = parser.parse_args()
    begun = time.perf_counter()
    device = machine.pick_device()
    if device.type == "cpu" and not args.quick:
        parser.error(f"torch {torch.__version__} finds no GPU; --quick runs on the CPU")
    cases = QUICK_CASES if args.quick else CASES
    num_steps = QUICK_STEPS if args.quick else NUM_STEPS
    found = {
        "device": machine.device_name(device),
        "hardware": hardware(),
        "versions": versions("torch", "numpy", "transformers"),
        "cuda": torch.version.cuda,
        "models": [],
        "peers": [],
        "exact": [],
        "products": [],
    }

    def keep(section: str, measured: dict) -> None:
        """Write what was measured so far: it stays if a later model does not fit."""
        print(measured, flush=True)
        found[section].append(measured)
        write_json(args.out / "gpu.json", found)
        gc.collect()  # a compiled model is part of reference cycles
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)

    def keep_case(section: str, case: Case, num_steps: int, arithmetic: Arithmetic) -> None:
        """Measure a case, or write why it was not."""
        left_out = {"model": case.preset, "implementation": case.model}
        if time.perf_counter() - begun > LATEST_START_S:
            return keep(section, left_out | {"left_out": f"not begun after {LATEST_START_S} s"})
        try:
            measured = measure(case, num_steps, device, arithmetic)
        except (ImportError, torch.OutOfMemoryError) as error:
            if case.model == "ours":
                raise
            measured = left_out | {"left_out": str(error)}
        keep(section, measured)

    # Fast numerics, beside others.
    fast = FAST_EAGER if args.eager else FAST
    for case in cases:
        keep_case("models", case, num_steps, fast)
    for case in QUICK_PEERS if args.quick else PEERS:
        keep_case("peers", case, num_steps, fast)

    # Exact numerics, beside torch's own float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in QUICK_PRODUCTS if args.quick else PRODUCTS:
        keep("products", measure_product(*shape, device))
    for case in QUICK_CASES if args.quick else EXACT_CASES:
        for arithmetic in (EXACT, FLOAT32):
            keep_case("exact", case, NUM_EXACT_STEPS, arithmetic)
    print(f"{args.out / 'gpu.json'} has the results; please send it with an issue")


if __name__ == "__main__":
    main()
