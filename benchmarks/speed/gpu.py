"""What a GPU reaches: training steps of some models in both numerics, in one JSON file that its owner can send.

    make bench-gpu                                                     # eight minutes at most
    PYTHONPATH=src:benchmarks python benchmarks/speed/gpu.py --quick   # a small model, also on a CPU

For each model: tokens per second, the share of the measured peak of matrix products (MFU), the most memory, how often
a step makes Python wait for the GPU, and the loss after the last step. The steps are those of the stage `train`:

- `models`, 200 steps in fast numerics: Muon, compiled blocks, bfloat16 where the device has it. The text is made up and
  the same everywhere, so the losses of two devices should agree within 0.01 nats.
- `exact`, 12 steps in exact numerics, and the same steps in torch's own float32 without TF32. The digest of the state
  after them is the same on every device.
- `products`: the rate of products in exact numerics, and of torch's (cuBLAS) in float32.

Writes gpu.json into the folder of the command line.
"""

import argparse
import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import torch

from harness import ROOT, hardware, versions
from lm.core.files import write_json
from lm.core.numerics import Numerics
from lm.core.params import read_section
from lm.exact.functions import kernels_of
from lm.model import device as machine
from lm.model.config import ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token
from lm.tokens.windows import TokenWindows
from lm.train import step
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from tools.prove.golden_run import make_ids

# Preset, entries of the vocabulary, tokens of a window, windows of a step, all in one micro-batch.
CASES = [("tiny", 16_384, 256, 256), ("gpt2_size", 50_257, 1024, 32), ("gemma3_270m", 262_144, 1024, 16)]
QUICK_CASES = [("tiny", 1000, 32, 4)]
EXACT_CASES = [("tiny", 16_384, 256, 8), ("gpt2_size", 50_257, 1024, 16)]
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
NUM_STEPS, QUICK_STEPS = 200, 8
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


def train_params(seq_len: int, batch_size: int, num_steps: int, arithmetic: Arithmetic) -> TrainParams:
    """Return the parameters of the default in an arithmetic, with batches of one micro-batch."""
    params = read_section(ROOT / "params.yaml", "train", TrainParams)
    tokens = seq_len * batch_size
    return dataclasses.replace(
        params,
        seq_len=seq_len,
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


def measure(
    name: str,
    vocab_size: int,
    seq_len: int,
    batch_size: int,
    num_steps: int,
    device: torch.device,
    arithmetic: Arithmetic,
) -> dict:
    """Train a model for `num_steps` steps; return what was measured."""
    # Build the model, its optimizers and its batches.
    params = train_params(seq_len, batch_size, num_steps, arithmetic)
    config = read_section(ROOT / "presets.yaml", f"models.{name}", ModelParams).config(vocab_size)
    is_exact = params.numerics == "exact"
    dtype = torch.float32 if is_exact else machine.resolve_dtype(params.dtype, device)
    model = Gemma3Model(config, params.numerics)
    model.init_weights(torch.Generator().manual_seed(params.seed))
    model.to(device)
    if params.compile:
        model.compile()
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
    is_gpu = device.type == "cuda"
    return {
        "model": name,
        "parameters": count_parameters(config)["total"],
        "vocab_size": vocab_size,
        "seq_len": seq_len,
        "batch_tokens": params.batch_tokens,
        "steps": num_steps,
        "dtype": str(dtype).removeprefix("torch."),
        "numerics": params.numerics,
        "compiled": params.compile,
        "tokens_per_s": round(tokens_per_s),
        "share_of_peak": round(flops_per_s / peak, 3),
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
    device = machine.pick_device()
    if device.type == "cpu" and not args.quick:
        parser.error(f"torch {torch.__version__} finds no GPU; --quick runs on the CPU")
    cases, num_steps = (QUICK_CASES, QUICK_STEPS) if args.quick else (CASES, NUM_STEPS)
    found = {
        "device": machine.device_name(device),
        "hardware": hardware(),
        "versions": versions("torch", "numpy"),
        "cuda": torch.version.cuda,
        "models": [],
        "exact": [],
        "products": [],
    }

    def keep(section: str, measured: dict) -> None:
        """Write what was measured so far: it stays if a later model does not fit."""
        print(measured, flush=True)
        found[section].append(measured)
        write_json(args.out / "gpu.json", found)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    # Exact numerics, beside torch's own float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    for case in QUICK_CASES if args.quick else EXACT_CASES:
        for arithmetic in (EXACT, FLOAT32):
            keep("exact", measure(*case, NUM_EXACT_STEPS, device, arithmetic))
    for shape in QUICK_PRODUCTS if args.quick else PRODUCTS:
        keep("products", measure_product(*shape, device))

    # Fast numerics.
    fast = FAST_EAGER if args.eager else FAST
    for case in cases:
        keep("models", measure(*case, num_steps, device, fast))
    print(f"{args.out / 'gpu.json'} has the results; please send it with an issue")


if __name__ == "__main__":
    main()
