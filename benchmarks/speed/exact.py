"""Compare exact numerics with torch's float32: the time of a step and of a validation, and the results.

    PYTHONPATH=src:benchmarks python benchmarks/speed/exact.py [--folder .] [--rounds 30]

The model and the tokens are those of the last `dvc repro` in a folder. Steps and validations of both alternate, with
one thread and with two, because the load of the machine changes the times. Each ratio is that of two consecutive ones.
Writes results/exact.json.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import psutil
import torch
from torch import Tensor

from lm.core.params import read_section
from lm.exact.threads import set_num_threads
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import keep_freed_memory
from lm.model.score import window_losses
from lm.model.weights import load_trained
from lm.tokens.tokenfile import TokenFile, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from lm.train.step import sampling_weights, uniform_draws
from result import RESULTS, ROOT, versions, write_result

SCORED_WINDOWS = 80
WINDOWS_AT_A_TIME = 8
THREADS = (1, 2)


def take_step(model: Gemma3Model, x: Tensor, y: Tensor, draws: Tensor | None) -> dict[str, Tensor]:
    """Compute the loss of x, y (B, T) and its gradients; return the gradients by name."""
    model.zero_grad(set_to_none=True)
    model.loss(x, y, draws).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def score(model: Gemma3Model, tokens: TokenFile, seq_len: int) -> np.ndarray:
    """Return the losses, float64 in nats, of windows at the beginning of a token file."""
    starts = np.arange(SCORED_WINDOWS) * seq_len
    batches = np.split(starts, SCORED_WINDOWS // WINDOWS_AT_A_TIME)
    losses = [window_losses(model, tokens, batch, seq_len, torch.float32).cpu().numpy() for batch in batches]
    return np.concatenate(losses).astype(np.float64)


def relative_difference(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference, relative to the norm of `other`."""
    one = one.double()
    other = other.double()
    return float((one - other).norm() / other.norm())


def busy_share() -> float:
    """Return the fraction of all cores (0 to 1) that other processes use while this one sleeps for a second."""
    return psutil.cpu_percent(1) / 100


def interleave(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each case once a round, in reversed order every other round; return the seconds."""
    seconds = {name: [] for name in cases}
    for index in range(rounds):
        for name in cases if index % 2 == 0 else reversed(cases):
            start = time.perf_counter()
            cases[name]()
            seconds[name].append(time.perf_counter() - start)
            print(f"round {index + 1} of {rounds}: {name} {seconds[name][-1]:.3f} s", flush=True)
    return seconds


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description="Exact numerics against torch's float32.")
    parser.add_argument("--folder", type=Path, default=ROOT, help="where `dvc repro` ran")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    params = read_section(ROOT / "params.yaml", "train", TrainParams)
    data = args.folder / "data"
    train = open_tokens(data / "processed_datasets" / "train.bin")
    validation = open_tokens(data / "processed_datasets" / "validation.bin")
    keep_freed_memory()

    # The same model in both numerics, and a step of the default.
    models = {}
    for numerics in ("exact", "fast"):
        model, _ = load_trained(data / "models", torch.device("cpu"), numerics)
        model.sampling_weights = sampling_weights(train.ids, model.config.vocab_size)
        models[numerics] = model
    windows = TokenWindows(train.ids, params.seq_len, params.batch_size, params.seed)
    inputs, targets = windows.batch(0)
    x = torch.from_numpy(inputs.astype(np.int64))
    y = torch.from_numpy(targets.astype(np.int64))
    draws = uniform_draws(0, params)

    # Compare the results. The first call compiles the loops.
    gradients = {numerics: take_step(model, x, y, draws) for numerics, model in models.items()}
    gradient_differences = [
        relative_difference(gradients["exact"][name], gradient) for name, gradient in gradients["fast"].items()
    ]
    losses = {numerics: score(model, validation, params.seq_len) for numerics, model in models.items()}
    loss_differences = losses["exact"] - losses["fast"]

    # Compare the times. A round is a step, or a validation, in both numerics.
    def step(numerics: str, threads: int) -> None:
        set_num_threads(threads, numerics)
        take_step(models[numerics], x, y, draws)

    def validate(numerics: str, threads: int) -> None:
        set_num_threads(threads, numerics)
        score(models[numerics], validation, params.seq_len)

    busy = [busy_share()]
    seconds = {}
    times_longer = {}
    rounds_of_validation = max(1, args.rounds // 3)
    for name, case, rounds in (("step", step, args.rounds), ("validation", validate, rounds_of_validation)):
        for threads in THREADS:
            cases = {numerics: functools.partial(case, numerics, threads) for numerics in ("fast", "exact")}
            found = interleave(cases, rounds)
            key = f"{name}, threads: {threads}"
            ratios = [exact / fast for exact, fast in zip(found["exact"], found["fast"], strict=True)]
            times_longer[key] = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
            seconds |= {f"{key}, {numerics}": times for numerics, times in found.items()}
    busy.append(busy_share())

    write_result(
        RESULTS / "exact.json",
        seconds=seconds,
        busy_shares=busy,
        exact_times_longer=times_longer,
        step_tokens=x.numel(),
        scored_tokens=int(loss_differences.size),
        largest_loss_difference_nats=float(np.abs(loss_differences).max()),
        mean_loss_difference_nats=float(loss_differences.mean()),
        median_gradient_difference=statistics.median(gradient_differences),
        versions=versions("torch", "numpy", "numba"),
    )


if __name__ == "__main__":
    main()
