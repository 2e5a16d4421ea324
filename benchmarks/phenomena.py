"""Evaluate the excess loss on stories by phenomenon in several states of each run.

    PYTHONPATH=src:benchmarks python benchmarks/phenomena.py stories stories_long

The data of the experiments come from DVC's cache, their states from .runs, which keeps some of each run
(`train.keep_states` of runtime.yaml). Writes benchmarks/results/phenomena.json and phenomena.png.
"""

import argparse
import functools
import subprocess
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from matplotlib.axes import Axes

from extras.probes.phenomena import PHENOMENA, split_loss, summarize_phenomena
from harness import versions
from lm import plots
from lm.core.files import read_json, write_json
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.score import score_tokens
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from lm.train import checkpoints

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATA = (
    "data/processed_datasets/validation.bin",
    "data/processed_datasets/validation.json",
    "data/tokenizer",
    "data/models",
    "data/evaluation",
)
LOOKS = dict(zip(PHENOMENA, zip("osD^vPX*<>", np.linspace(0, 0.6, len(PHENOMENA)), strict=True), strict=True))


def states_of(run: Path) -> list[tuple[int, dict]]:
    """Return the kept states of a run, and its final weights: (tokens seen, weights)."""
    states = {step: checkpoints.load_state(record) for step, record in checkpoints.kept_states(run).items()}
    last = read_json(run / "done" / "models" / "model.json")["last"]
    tokens_per_step = last["tokens_seen"] // last["step"]
    final = torch.load(run / "done" / "models" / "last_model_params.pt", weights_only=True)
    kept = [(tokens_per_step * step, state["average"] or state["model"]) for step, state in states.items()]
    return [*kept, (last["tokens_seen"], final)]


def phenomena_of(weights: dict, record: dict, stride: int, validation, tokenizer) -> dict:
    """Score weights of the run `record`, a model.json; return the figures of `summarize_phenomena`."""
    model, seq_len = Gemma3Model(ModelConfig(**record["config"])), record["seq_len"]
    model.load_state_dict(weights)
    model.document_start_id = None if record["attend_across_documents"] else record["eot_id"]
    losses, _ = score_tokens(model, validation, seq_len, stride, max(1, 8192 // seq_len), torch.float32)
    return summarize_phenomena(split_loss(losses, validation.ids, validation.spans, tokenizer))


def evaluate(experiment: str) -> dict:
    """Return a run's fingerprint, number of stories, and phenomena of each of its states."""
    with tempfile.TemporaryDirectory(prefix="phenomena-") as name:
        for path in DATA:
            subprocess.run(["dvc", "get", "-q", "--rev", experiment, ".", path, "-o", Path(name) / path], check=True)
        validation, tokenizer = open_tokens(Path(name) / DATA[0]), load_tokenizer(Path(name) / "data" / "tokenizer")
        record = read_json(Path(name) / "data" / "models" / "model.json")
        details = read_json(Path(name) / "data" / "evaluation" / "details.json")
        rows = []
        for tokens, weights in states_of(ROOT / ".runs" / record["fingerprint"]):
            found = phenomena_of(weights, record, details["stride_tokens"], validation, tokenizer)
            rows.append({"tokens": tokens, "phenomena": found})
            total = sum(each["excess_bits_per_story"] for each in found.values())
            print(f"{experiment}, {tokens:,} tokens: an excess of {total:.1f} bits per story", flush=True)
        return {"fingerprint": record["fingerprint"], "stories": len(validation.spans), "states": rows}


def draw(axes: Axes, rows: list[dict]) -> None:
    """Draw a line for each phenomenon, the same in each panel; one that is at or below zero somewhere is left out."""
    tokens = [row["tokens"] / 1e6 for row in rows]
    excess = {name: [row["phenomena"][name]["excess_bits_per_story"] for row in rows] for name in PHENOMENA}
    shown = sorted((name for name in PHENOMENA if min(excess[name]) > 0), key=lambda name: -excess[name][-1])
    for name in shown:
        marker, shade = LOOKS[name]
        axes.plot(tokens, excess[name], marker=marker, color=str(shade), label=name)
    axes.set_xlabel("tokens seen, millions")
    axes.set_ylabel("excess, bits per story")
    plots.scale_log(axes)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))


def main() -> None:
    """Evaluate the states of each run, and write the figures and the picture."""
    parser = argparse.ArgumentParser(description="The excess by phenomenon in the states of runs.")
    parser.add_argument("experiments", nargs="+")
    args = parser.parse_args()
    runs = {experiment: evaluate(experiment) for experiment in args.experiments}
    write_json(RESULTS / "phenomena.json", {"versions": versions("torch"), "runs": runs})
    panels = [functools.partial(draw, rows=run["states"]) for run in runs.values()]
    figure = plots.figure_of(*panels, size=(7.5, 3.5 * len(panels)), title="Excess loss by phenomenon")
    plots.save_png(figure, RESULTS / "phenomena.png")


if __name__ == "__main__":
    main()
