"""Sample with the cache of keys and values, and by recomputing the whole text for every token.

    PYTHONPATH=src:benchmarks python benchmarks/speed/generate.py [--new_tokens 512 --rounds 5 --model tiny]

Both draw from the same prompt and seed, and must draw the same ids. The weights are random: their values do not change
the time. Writes results/generate.json.
"""

import argparse

import lm.core.environment  # noqa: F401 - before torch

import torch

from harness import ROOT, busy_share, interleave, versions, write_results
from lm.core.params import read_section
from lm.evaluate.generation import generate
from lm.model.config import ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description="Cached against uncached sampling.")
    parser.add_argument("--new_tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="tiny", help="a key of `models` in presets.yaml")
    parser.add_argument("--vocab_size", type=int, default=16_384)
    args = parser.parse_args()
    config = read_section(ROOT / "presets.yaml", f"models.{args.model}", ModelParams).config(args.vocab_size)
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(1))

    def sample(use_cache: bool) -> list[int]:
        generator = torch.Generator().manual_seed(1)
        return list(generate(model, [0], args.new_tokens, generator=generator, use_cache=use_cache))

    ids = sample(True)
    same_ids = sample(False)
    assert ids == same_ids, f"the cache changed an id: {ids} {same_ids}"
    busy = [busy_share()]
    seconds = interleave({"cached": lambda: sample(True), "not": lambda: sample(False)}, args.rounds)
    busy.append(busy_share())
    write_results(
        "generate",
        seconds=seconds,
        ours="cached",
        busy=busy,
        model=args.model,
        new_tokens=args.new_tokens,
        parameters=count_parameters(config)["total"],
        threads=torch.get_num_threads(),
        versions=versions("torch"),
    )


if __name__ == "__main__":
    main()
