"""Measure training steps of some models on a GPU, in both numerics, and write one JSON file that you can send.

    make bench-gpu                                                     # eight minutes at most
    PYTHONPATH=src:benchmarks python benchmarks/speed/gpu.py --quick   # a small model, also on a CPU

For each model: tokens per second, the fraction of the measured peak of matrix products (MFU), the peak of memory, how
often a step makes Python wait for the GPU, and the loss after the last step. The steps are those of the stage `train`:

- `prove`, the line of `python src verify --processor short`: whether this device has the committed bits.
- `models`, 200 steps in fast numerics: Muon, compiled blocks, bfloat16 where the device has it. The text is made up and
  the same everywhere, so the loss and the norm of the first step should be a CPU's (speed/first_steps.py).
- `exact`, 12 steps in exact numerics, and the same steps in torch's own float32 without TF32. The digest of the state
  after them is the same on every device.
- `products`: the rate of products in exact numerics, and of torch's (cuBLAS) in float32.
- `variants`, 200 steps without an option that was chosen by the output of the compiler, not by time.

A model that would begin after 400 s is left out. Writes gpu.json into the folder of the command line.
"""

import argparse
import gc
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import lm.core.environment  # noqa: F401 - before torch

import torch
from gpu_models import (
    CASES,
    EXACT,
    EXACT_CASES,
    FAST,
    FAST_EAGER,
    FLOAT32,
    QUICK_CASES,
    Arithmetic,
    Case,
    start_run,
)

from lm.core.files import read_json
from lm.exact.functions import kernels_of
from lm.model import machine
from lm.model.gemma3 import flops_per_token
from lm.train import step
from result import RESULTS, ROOT, versions, write_result

FIRST_STEPS = RESULTS / "first_steps.json"
LOSS_TOLERANCE_NATS = 0.01  # of the first step, whose products have operands of bfloat16
NORM_TOLERANCE = 0.02  # relative
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
VARIANTS = [  # the option that is left out, and the model that it was chosen for
    ("lm.model.kernels.WIDE_HEAD_OPTIONS", Case("gemma3_270m", 262_144, 1024, 16)),
    ("lm.model.gemma3.GPU_COMPILER_OPTIONS", Case("gpt2_size", 50_257, 1024, 32)),
]
NUM_STEPS = 200
QUICK_STEPS = 8
NUM_EXACT_STEPS = 12
WARMUP_STEPS = 3  # of the clock: they compile the blocks


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
    """Train a model for `num_steps` steps and return the measurements."""
    params, config, dtype, state, batches = start_run(case, num_steps, device, arithmetic)

    # Take the steps; the clock starts after the first ones.
    losses: list[float] = []
    norms: list[float] = []

    def run_step() -> None:
        """Take one step of the run."""
        loss, norm = step.compute_gradients(state, next(batches), params, dtype)
        step.update_weights(state, step.learning_rate(state.step, params))
        losses.append(loss)
        norms.append(norm)

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
    flops_per_s = tokens_per_s * flops_per_token(config, case.seq_len)["total"]
    peak = peak_flops(device, dtype)
    is_gpu = device.type == "cuda"
    return {
        "model": case.preset,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "vocab_size": case.vocab_size,
        "seq_len": case.seq_len,
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
        "first_norm": norms[0],
        "last_loss": losses[-1],
        "digest": state.digest() if params.numerics == "exact" else None,
    }


def agrees_with_cpu(case: Case, measured: dict) -> bool:
    """Return whether the first step has the loss and the gradient norm of a CPU in float32 (speed/first_steps.py)."""
    expected = read_json(FIRST_STEPS)["steps"][case.preset if case in CASES else "quick"]
    loss_differs_by = abs(measured["first_loss"] - expected["loss"])
    norm_differs_by = abs(measured["first_norm"] / expected["norm"] - 1)
    return loss_differs_by <= LOSS_TOLERANCE_NATS and norm_differs_by <= NORM_TOLERANCE


def prove() -> str:
    """Return the last line of `python src verify --processor short`."""
    command = [sys.executable, "src", "verify", "--processor", "short"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip().rpartition("\n")[2]


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


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the peak rate of square matrix products now, in FLOP/s (2 per multiply-add)."""
    size = 8192 if device.type == "cuda" else 1024  # the larger ones fill a GPU
    a = torch.randn(size, size, device=device, dtype=dtype)
    products = torch.empty_like(a)
    return 2 * size**3 / fastest_s(lambda: torch.mm(a, a, out=products), device)


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


class Record:
    """The file gpu.json, written after each measurement, so that results stay if a later model does not fit."""

    def __init__(self, path: Path, device: torch.device):
        self.path = path
        self.device = device
        self.begun = time.perf_counter()
        self.found = {
            "device": machine.device_name(device),
            "versions": versions("torch", "numpy"),
            "cuda": torch.version.cuda,
            "prove": prove(),
            "models": [],
            "exact": [],
            "products": [],
            "variants": [],
        }
        print(self.found["prove"], flush=True)

    def add(self, section: str, measured: dict) -> None:
        """Print and write a measurement, and free the memory of its model."""
        print(measured, flush=True)
        self.found[section].append(measured)
        write_result(self.path, **self.found)
        gc.collect()  # a compiled model is part of reference cycles
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def measure(self, section: str, case: Case, num_steps: int, arithmetic: Arithmetic, **names: str) -> None:
        """Measure a case, or write why it was left out."""
        if time.perf_counter() - self.begun > LATEST_START_S:
            left_out = {"model": case.preset, "left_out": f"not begun after {LATEST_START_S} s"}
            self.add(section, names | left_out)
            return
        measured = names | measure(case, num_steps, self.device, arithmetic)
        if section == "models":
            measured["agrees_with_cpu"] = agrees_with_cpu(case, measured)
        self.add(section, measured)


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
    record = Record(args.out / "gpu.json", device)
    num_steps = QUICK_STEPS if args.quick else NUM_STEPS

    # Fast numerics.
    fast = FAST_EAGER if args.eager else FAST
    for case in QUICK_CASES if args.quick else CASES:
        record.measure("models", case, num_steps, fast)

    # Exact numerics, beside torch's own float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in QUICK_PRODUCTS if args.quick else PRODUCTS:
        record.add("products", measure_product(*shape, device))
    for case in QUICK_CASES if args.quick else EXACT_CASES:
        for arithmetic in (EXACT, FLOAT32):
            record.measure("exact", case, NUM_EXACT_STEPS, arithmetic)

    # Fast numerics without an option.
    for option, case in VARIANTS:
        with mock.patch(option, {}):
            record.measure("variants", QUICK_CASES[0] if args.quick else case, num_steps, fast, without=option)
    print(f"{record.path} has the results; please send it with an issue")


if __name__ == "__main__":
    main()
