"""Train the recipe of params.yaml for one minute, and print its rank among the recipes of speedrun.yaml.

    PYTHONPATH=src:benchmarks python benchmarks/quality/speedrun.py [--set train.peak_lr=0.014]
    PYTHONPATH=src:benchmarks python benchmarks/quality/speedrun.py --record [--seeds 1 2 3]   # every recipe

All use fast numerics and train on text before the default validation text, of which recipes must know nothing. A
recipe trains as many tokens as fit into the time; a short run before each one measures the speed, because that of a
machine drifts. The loss is that of the rest of the training text, in non-overlapping windows. Writes
results/speedrun.json.
"""

import argparse
import itertools
import math
import statistics
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
import yaml

from evidence.statistics import welch
from harness import (
    RESULTS,
    busy_share,
    change_params,
    hardware,
    read_values,
    run_stage,
    stage_folder,
    versions,
    write_results,
)
from lm.core.files import read_json
from lm.core.params import read_section
from lm.model import machine
from lm.model.score import score_tokens
from lm.model.weights import load_trained
from lm.tokens.tokenfile import open_tokens

RESULT = RESULTS / "speedrun.json"
RECIPES = Path(__file__).with_suffix(".yaml")
NUM_CHARS = 8_900_000  # of the training text; recipes are scored on the rest
BEFORE_VALIDATION = {
    "sources.torch_headers.train.num_chars": NUM_CHARS,
    "sources.torch_headers.validation.split": "train",
    "sources.torch_headers.validation.start_char": NUM_CHARS,
}
DATA_STAGES = ("fetch", "make_tokenizer", "tokenize_train", "tokenize_val")
TRIAL_STEPS = 100  # that measure the speed


def prepare(folder: Path, values: dict) -> Path:
    """Fetch and tokenize the text in a folder of its own, with these parameters."""
    stage_folder(folder)
    change_params(folder, BEFORE_VALIDATION | values)
    for stage in DATA_STAGES:
        run_stage(folder, stage)
    return folder


def train(folder: Path, num_tokens: int, seed: int) -> dict:
    """Train a number of tokens with the stage; return the tokens and the seconds.

    The stage's clock includes its validations; they are reduced to one window before the first step,
    which is subtracted, and one after the last, which is not.
    """
    # Train whole steps.
    section = yaml.safe_load((folder / "params.yaml").read_text())["train"]
    num_steps = max(1, num_tokens // section["batch_tokens"])
    tokens = num_steps * section["batch_tokens"]
    values = {
        "train.seed": seed,
        "train.max_tokens": tokens,
        "train.eval_every_tokens": tokens,
        "train.eval_tokens": section["seq_len"],
    }
    change_params(folder, values)
    run_stage(folder, "train")

    # Read its clock.
    run = read_json(folder / "data" / "models" / "model.json")["fingerprint"]
    timing = read_json(folder / ".runs" / run / "timing.json")
    return {"tokens": tokens, "seconds": timing["seconds"][-1] - timing["seconds"][0]}


def bits_per_byte(folder: Path) -> float:
    """Return the loss of the trained model over the whole validation file, in non-overlapping windows."""
    device = torch.device("cpu")
    model, record = load_trained(folder / "data" / "models", device)
    validation = open_tokens(folder / "data" / "processed_datasets" / "validation.bin")
    seq_len = record["seq_len"]
    dtype = machine.resolve_dtype(read_section(folder / "params.yaml", "train.dtype", str), device)
    losses, _ = score_tokens(model, validation, seq_len, seq_len, 32, dtype)
    bits = float(losses.sum(dtype="float64")) / math.log(2)
    return bits / validation.meta["utf8_bytes"]


def train_for(folder: Path, budget_s: float, seed: int) -> dict:
    """Train for about that many seconds; return tokens, seconds, seed and bits per byte."""
    section = yaml.safe_load((folder / "params.yaml").read_text())["train"]
    trial = train(folder, TRIAL_STEPS * section["batch_tokens"], seed)
    tokens_per_s = trial["tokens"] / trial["seconds"]
    print(f"{tokens_per_s:,.0f} tokens/s", flush=True)
    run = train(folder, int(budget_s * tokens_per_s), seed)
    return run | {"seed": seed, "bits_per_byte": bits_per_byte(folder)}


def record(folder: Path, args: argparse.Namespace) -> None:
    """Train every recipe with every seed, in turns, and write each with its change from the one before."""
    rows = []
    folders = []
    values = {}
    for number, recipe in enumerate(yaml.safe_load(RECIPES.read_text())):
        values = values | recipe["changes"]
        folders.append(prepare(folder / str(number), values))
        rows.append({"recipe": recipe["name"], "runs": []})

    busy = [busy_share()]
    for seed in args.seeds:
        for own, row in zip(folders, rows, strict=True):
            row["runs"].append(train_for(own, args.seconds, seed))
            print(f"{row['recipe']}: {row['runs'][-1]}", flush=True)
    busy.append(busy_share())

    for row in rows:
        row["bits_per_byte"] = float(losses(row).mean())
    for before, row in itertools.pairwise(rows):
        row["change"] = welch(losses(before), losses(row))._asdict()
    write_results(
        "speedrun",
        seconds={row["recipe"]: [run["seconds"] for run in row["runs"]] for row in rows},
        ours=rows[-1]["recipe"],
        busy=busy,
        budget_s=args.seconds,
        seeds=args.seeds,
        machine=machine_name(),
        rows=rows,
        versions=versions("torch"),
    )


def losses(row: dict) -> np.ndarray:
    """Return the bits per byte (R,) of a recipe's runs."""
    return np.array([run["bits_per_byte"] for run in row["runs"]])


def machine_name() -> str:
    """Return the number of cores and the processor."""
    return "{cores} cores of {processor}".format_map(hardware())


def try_once(folder: Path, args: argparse.Namespace) -> None:
    """Train the recipe of params.yaml, changed by --set, and print its rank among the recorded ones."""
    folder = prepare(folder / "own", {"train.numerics": "fast"} | read_values(args.set))
    runs = [train_for(folder, args.seconds, seed) for seed in args.seeds]
    for run in runs:
        print(run)
    loss = statistics.mean(run["bits_per_byte"] for run in runs)

    # The recorded recipes and this one, the best first.
    found = read_json(RESULT)
    print(f"the others were recorded on {found['machine']}; this is {machine_name()}")
    rows = [(row["bits_per_byte"], row["recipe"]) for row in found["rows"]]
    for value, name in sorted([*rows, (loss, "← this run")]):
        print(f"  {value:.4f}  {name}")


def main() -> None:
    """Record all recipes, or try one."""
    parser = argparse.ArgumentParser(description="The loss after a minute of training.")
    parser.add_argument("--seconds", type=float, default=60, help="of training (60)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters to try")
    parser.add_argument("--record", action="store_true", help="train every recipe of speedrun.yaml")
    args = parser.parse_args()
    run = record if args.record else try_once
    with tempfile.TemporaryDirectory(prefix="speedrun-") as name:
        run(Path(name), args)


if __name__ == "__main__":
    main()
