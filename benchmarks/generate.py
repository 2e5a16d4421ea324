"""Sampling with the cache of keys and values against recomputing the whole text for every token.

    PYTHONPATH=src python benchmarks/generate.py [--new_tokens 512 --rounds 5 --model tiny]

Each round times both on the same prompt and seed, one directly after the other, and they have to draw
the same ids; the ratio of a round is what another load of the machine changes least. The weights are
random: their values do not change the time. Writes benchmarks/results/generate.json.
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path

import torch

from lm import machine
from lm.files import write_json
from lm.model import Gemma3Model, ModelParams, count_parameters
from lm.params import read_section
from lm.sample import generate

ROOT = Path(__file__).resolve().parent.parent
PROMPT_IDS = [0]


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Cached against uncached sampling.")
    parser.add_argument("--new_tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny", help="a key of `models` in params.yaml")
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "generate.json")
    return parser.parse_args()


def describe_machine(device: torch.device) -> dict:
    """Processor, cores and load beside what lm.machine says."""
    names = [line for line in read_lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": names[0].split(":", 1)[1].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **machine.describe(device, torch.float32),
    }


def read_lines(path: str) -> list[str]:
    """The lines of a file, none where there is no such file (macOS)."""
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def time_sampling(model: Gemma3Model, new_tokens: int, use_cache: bool) -> tuple[float, list[int]]:
    """Seconds to draw so many ids, and the ids."""
    generator = torch.Generator(model.device).manual_seed(1)
    start = time.perf_counter()
    ids = list(generate(model, PROMPT_IDS, new_tokens, generator=generator, use_cache=use_cache))
    return time.perf_counter() - start, ids


def measure_round(model: Gemma3Model, new_tokens: int) -> dict:
    """Time both ways once; they have to draw the same."""
    cached_s, ids = time_sampling(model, new_tokens, use_cache=True)
    uncached_s, same_ids = time_sampling(model, new_tokens, use_cache=False)
    assert ids == same_ids, f"the cache changed an id: {ids} {same_ids}"
    return {"cached_s": cached_s, "uncached_s": uncached_s, "ratio": uncached_s / cached_s}


def main() -> None:
    """Measure, print a line a round, write the results."""
    args, device = parse(), machine.pick_device()
    config = read_section(ROOT / "params.yaml", f"models.{args.model}", ModelParams).config(args.vocab_size)
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(1))
    model.to(device)
    time_sampling(model, min(args.new_tokens, 32), use_cache=True)  # the first calls set kernels up
    before, rounds = describe_machine(device), []
    for _ in range(args.rounds):
        rounds.append(measure_round(model, args.new_tokens))
        print("cached {cached_s:.3f} s, uncached {uncached_s:.3f} s: {ratio:.2f} times".format(**rounds[-1]))
    results = {
        "machine": before,
        "model": args.model,
        "parameters": count_parameters(config)["total"],
        "prompt_tokens": len(PROMPT_IDS),
        "new_tokens": args.new_tokens,
        "median_ratio": statistics.median(r["ratio"] for r in rounds),
        "median_cached_tokens_per_s": args.new_tokens / statistics.median(r["cached_s"] for r in rounds),
        "rounds": rounds,
    }
    write_json(args.out, results)
    print(f"median of {args.rounds} rounds: {results['median_ratio']:.2f} times faster with the cache")


if __name__ == "__main__":
    main()
