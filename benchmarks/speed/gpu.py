"""What a GPU reaches: 200 training steps of three models, in one JSON file that its owner can send.

    make bench-gpu                                                     # ten minutes at most
    PYTHONPATH=src:benchmarks python benchmarks/speed/gpu.py --quick   # a small model, also on a CPU

For each model: tokens per second, the share of the measured peak of matrix products (MFU), the most memory, how often
a step makes Python wait for the GPU, and the loss after the last step. The steps are those of the stage `train` in fast
numerics: Muon, compiled blocks, bfloat16 where the device has it. The text is made up and the same everywhere, so the
losses of two devices should agree within 0.01 nats. Writes gpu.json into the folder of the command line.
"""

import argparse
import dataclasses
import time
import warnings
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import torch

from harness import ROOT, hardware, versions
from lm.core.files import write_json
from lm.core.params import read_section
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
NUM_STEPS, QUICK_STEPS = 200, 8
WARMUP_STEPS = 3  # of the clock: they compile the blocks
NUM_TEXT_TOKENS = 2_000_000


def train_params(seq_len: int, batch_size: int, num_steps: int, compiled: bool) -> TrainParams:
    """Return the parameters of the default in fast numerics, with batches of one micro-batch."""
    params = read_section(ROOT / "params.yaml", "train", TrainParams)
    tokens = seq_len * batch_size
    return dataclasses.replace(
        params,
        seq_len=seq_len,
        batch_tokens=tokens,
        micro_batch_tokens=tokens,
        max_tokens=tokens * num_steps,
        warmup_steps=num_steps // 10 + 1,
        numerics="fast",
        compile=compiled,
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
    name: str, vocab_size: int, seq_len: int, batch_size: int, num_steps: int, device: torch.device, compiled: bool
) -> dict:
    """Train a model for `num_steps` steps; return what was measured."""
    # Build the model, its optimizers and its batches.
    params = train_params(seq_len, batch_size, num_steps, compiled)
    config = read_section(ROOT / "presets.yaml", f"models.{name}", ModelParams).config(vocab_size)
    dtype = machine.resolve_dtype(params.dtype, device)
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(params.seed))
    model.to(device)
    if compiled:
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
        "compiled": compiled,
        "tokens_per_s": round(tokens_per_s),
        "share_of_peak": round(flops_per_s / peak, 3),
        "peak_tflops": round(peak / 1e12, 2),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if is_gpu else None,
        "waits_per_step": num_waits,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def main() -> None:
    """Measure each model and write the file."""
    parser = argparse.ArgumentParser(description="200 training steps of three models on this GPU.")
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
    }
    for case in cases:
        measured = measure(*case, num_steps, device, compiled=not args.eager)
        print(measured, flush=True)
        found["models"].append(measured)
        # What was measured so far stays if a later model does not fit.
        write_json(args.out / "gpu.json", found)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
    print(f"{args.out / 'gpu.json'} has the results; please send it with an issue")


if __name__ == "__main__":
    main()
