"""What a model of stories learns when: the excess of its loss by phenomenon, in several states of one run.

    PYTHONPATH=src:benchmarks python benchmarks/phenomena.py FOLDER .runs/FINGERPRINT

FOLDER holds `processed_datasets` and `tokenizer` of the run, for example from `dvc get --rev stories . data/tokenizer
-o FOLDER/tokenizer`. The run has kept states (`train.keep_states` of runtime.yaml). Writes benchmarks/results/
phenomena.json and phenomena.png.
"""

import argparse
import json
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from matplotlib.axes import Axes

from lm import plots
from lm.core.files import read_json, write_json
from lm.evaluate.phenomena import PHENOMENA, split_loss, summarize_excess
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.score import score_tokens
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from lm.train import checkpoints

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
STRIDE_FRACTION = 0.125  # as `make stories` evaluates
MARKERS = "osD^vPX*<>"


def states_of(run: Path) -> list[tuple[int, dict]]:
    """The kept states of a run, and its final weights: (tokens seen, weights)."""
    states = [(path, checkpoints.load_state(path)["model"]) for path in sorted(run.glob("kept-*.json"))]
    last = read_json(run / "done" / "models" / "model.json")["last"]
    tokens_per_step = last["tokens_seen"] // last["step"]
    final = torch.load(run / "done" / "models" / "last_model_params.pt", weights_only=True)
    kept = [(tokens_per_step * int(path.stem.removeprefix("kept-")), weights) for path, weights in states]
    return [*kept, (last["tokens_seen"], final)]


def excess_of(weights: dict, config: ModelConfig, seq_len: int, validation, tokenizer) -> dict:
    """The figures of `summarize_excess` of a model."""
    model = Gemma3Model(config)
    model.load_state_dict(weights)
    stride = max(1, round(STRIDE_FRACTION * seq_len))
    losses, _ = score_tokens(model, validation, seq_len, stride, 8192 // seq_len, torch.float32)
    return summarize_excess(split_loss(losses, validation.ids, validation.spans, tokenizer))


def draw(axes: Axes, rows: list[dict]) -> None:
    """One line for each phenomenon; one that is at or below zero somewhere has no place on a log axis."""
    tokens = [row["tokens"] / 1e6 for row in rows]
    excess = {name: [row["phenomena"][name]["excess_bits_per_story"] for row in rows] for name in PHENOMENA}
    shown = sorted((name for name in PHENOMENA if min(excess[name]) > 0), key=lambda name: -excess[name][-1])
    shades = np.linspace(0, 0.6, len(shown))
    for name, marker, shade in zip(shown, MARKERS, shades, strict=False):
        axes.plot(tokens, excess[name], marker=marker, color=str(shade), label=name)
    axes.set_xlabel("tokens seen, millions")
    axes.set_ylabel("excess, bits per story")
    plots.scale_log(axes)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))


def main() -> None:
    """Evaluate every state, and write the figures and the picture."""
    parser = argparse.ArgumentParser(description="The excess by phenomenon in the states of a run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="phenomena")
    args = parser.parse_args()
    validation = open_tokens(args.folder / "processed_datasets" / "validation.bin")
    tokenizer = load_tokenizer(args.folder / "tokenizer")
    record = read_json(args.run / "done" / "models" / "model.json")
    rows = []
    for tokens, weights in states_of(args.run):
        found = excess_of(weights, ModelConfig(**record["config"]), record["seq_len"], validation, tokenizer)
        rows.append({"tokens": tokens, "phenomena": found})
        total = sum(each["excess_bits_per_story"] for each in found.values())
        print(f"{tokens:,} tokens: {total:.1f} bits per story too many", flush=True)
    write_json(RESULTS / f"{args.name}.json", {"stories": len(validation.spans), "states": rows})
    figure = plots.figure_of(lambda axes: draw(axes, rows), size=(7.5, 4.0), title="What is learned when")
    plots.save_png(figure, RESULTS / f"{args.name}.png")
    print(json.dumps({name: round(each["excess_bits_per_story"], 2) for name, each in rows[-1]["phenomena"].items()}))


if __name__ == "__main__":
    main()
