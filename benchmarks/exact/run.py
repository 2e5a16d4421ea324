"""Print digests of 20 steps in exact numerics, or compare the time of a default step with portable numerics.

PYTHONPATH=src:benchmarks/exact python benchmarks/exact/run.py [--threads 3]; torchrun --nproc-per-node 3 …
qemu-x86_64 -cpu Haswell python …; qemu-aarch64 -L ROOT python …
PYTHONPATH=src:benchmarks/exact python benchmarks/exact/run.py --time data/processed_datasets/train.bin
"""

import argparse
import contextlib
import os
import platform
import time
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import torch
import torch.distributed as dist
from numerics import exact_numerics

from lm.core.params import read_section
from lm.model import device
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.tokens.tokenfile import open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import optimizers, step
from lm.train.config import TrainParams
from lm.train.state import TrainingState
from tools.prove import golden_run

CLOCKS = {"elapsed": time.perf_counter, "of the processor": time.process_time}  # other processes disturb the first


@torch.no_grad()
def init_weights(model: Gemma3Model, generator: torch.Generator) -> None:
    """Draw matrices as sums of 12 uniform integers: torch's normal numbers depend on the processor's logarithm."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            total = torch.randint(-(2**15), 2**15, (12, *weight.shape), generator=generator).sum(0)
            weight.copy_(total.double() / (2**16 * weight.shape[1] ** 0.5 * (4 if "embed" in name else 1)))
        else:
            weight.fill_(-0.5 if ".post_" in name else 0)


def print_digests() -> None:
    """Train `prove --run short` with eight units a step, which 1, 2, 3, … ranks can share."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    Gemma3Model.init_weights, golden_run.UNIT_TOKENS = init_weights, 128
    with exact_numerics():
        weights = golden_run.train("short")["weights"]
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    print(platform.machine(), torch.__version__, f"{ranks} ranks, {torch.get_num_threads()} threads:", weights)


def print_times(path: Path, rounds: int) -> None:
    """Train the default's steps in both numerics in turn; print the shortest times."""
    device.keep_freed_memory()
    tokens, params = open_tokens(path), read_section("params.yaml", "train", TrainParams)
    config = ModelConfig(**vars(read_section("presets.yaml", "models.tiny", ModelParams)), vocab_size=tokens.vocab_size)
    windows = TokenWindows(tokens.ids, params.seq_len, params.batch_size, params.seed)
    modes = {"portable": contextlib.nullcontext, "exact": exact_numerics}
    states, losses = {}, {}
    seconds = {(name, clock): float("inf") for name in modes for clock in CLOCKS}
    for name, numerics in modes.items():
        with numerics():
            model = Gemma3Model(config)
            model.init_weights(torch.Generator().manual_seed(params.seed))
            model.entry_weights = step.entry_weights(tokens.ids, tokens.vocab_size)
            states[name] = TrainingState(model, optimizers.build_optimizers(model, params, torch.float32))
    for number in range(rounds):
        batch = torch.from_numpy(windows.buffer(number))
        for name, numerics in modes.items():
            with numerics():
                starts = {clock: read() for clock, read in CLOCKS.items()}
                losses[name], _ = step.compute_gradients(
                    states[name], (batch[:, :-1], batch[:, 1:]), params, torch.float32
                )
                step.update_weights(states[name], 0.001)
                for clock, read in CLOCKS.items():
                    seconds[name, clock] = min(seconds[name, clock], read() - starts[clock])
    for clock in CLOCKS:
        portable, exact = seconds["portable", clock], seconds["exact", clock]
        print(f"{torch.get_num_threads()} threads, {clock}: {portable:.3f} s, {exact:.3f} s, {exact / portable:.2f}")
    print(f"last losses {losses}")


def main() -> None:
    """Do what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time", type=Path, metavar="TOKENS", help="a token file: time steps")
    parser.add_argument("--rounds", type=int, default=60, help="steps to time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print_times(args.time, args.rounds) if args.time else print_digests()


if __name__ == "__main__":
    main()
