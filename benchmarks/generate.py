"""Sampling with the cache of keys and values against recomputing the whole text for every token.

    PYTHONPATH=src python benchmarks/generate.py [--new_tokens 512 --rounds 5 --model tiny]

Both draw from the same prompt and seed, and have to draw the same ids. The weights are random: their
values do not change the time. Writes benchmarks/results/generate.json.
"""

import argparse
import statistics
from pathlib import Path

import torch

from harness import busy_share, interleave, ratios, versions, write_results
from lm.core.params import read_section
from lm.evaluate.generation import generate
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model, ModelParams, count_parameters

ROOT = Path(__file__).resolve().parent.parent
PROMPT_IDS = [0]


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Cached against uncached sampling.")
    parser.add_argument("--new_tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny", help="a key of `models` in presets.yaml")
    parser.add_argument("--vocab_size", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "generate.json")
    return parser.parse_args()


def sample(model: Gemma3Model, new_tokens: int, use_cache: bool) -> list[int]:
    """Generate a number of ids."""
    generator = torch.Generator(model.device).manual_seed(1)
    return list(generate(model, PROMPT_IDS, new_tokens, generator=generator, use_cache=use_cache))


def main() -> None:
    """Measure and write the results."""
    args, device = parse(), machine.pick_device()
    config = read_section(ROOT / "presets.yaml", f"models.{args.model}", ModelParams).config(args.vocab_size)
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(1))
    model.to(device)
    ids, same_ids = (sample(model, args.new_tokens, use_cache) for use_cache in (True, False))
    assert ids == same_ids, f"the cache changed an id: {ids} {same_ids}"
    busy = [busy_share()]
    cases = {name: lambda u=use: sample(model, args.new_tokens, u) for name, use in (("cached", True), ("not", False))}
    seconds = interleave(cases, args.rounds)
    busy.append(busy_share())
    rate = args.new_tokens / statistics.median(seconds["cached"])
    write_results(
        args.out, "generate", seconds=seconds, ours="cached", busy=busy, model=args.model,
        parameters=count_parameters(config)["total"], prompt_tokens=len(PROMPT_IDS), new_tokens=args.new_tokens,
        cached_tokens_per_s=rate, computed=machine.describe(device, torch.float32), versions=versions("torch"),
    )  # fmt: skip
    ratio = ratios(seconds, "cached")["not"]
    print(f"{ratio['median']:.2f} times faster with the cache ({ratio['min']:.2f} to {ratio['max']:.2f})")


if __name__ == "__main__":
    main()
