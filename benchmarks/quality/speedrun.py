"""Train the recipe of params.yaml for one minute, and print its rank among the recipes of speedrun.yaml.

    PYTHONPATH=src:benchmarks python benchmarks/quality/speedrun.py [--set train.peak_lr=0.014]
    PYTHONPATH=src:benchmarks python benchmarks/quality/speedrun.py --record [--seeds 1 2 3]   # every recipe
    PYTHONPATH=src:benchmarks python benchmarks/quality/speedrun.py --append [--seeds 1 2 3]   # those not recorded yet

All use fast numerics and train on text before the default validation text, of which recipes must know nothing. A
recipe trains as many tokens as fit into the time: the steps of all recipes are measured interleaved first, so that a
machine whose speed drifts treats them alike. `--append` trains the last recorded recipe again beside the new ones, so
that each change is measured in turns. The loss is that of the rest of the training text, in non-overlapping windows.
Writes results/speedrun.json.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
import yaml
from time_to_loss import bits_per_byte, prepare, run_ours

from harness import RESULTS, busy_share, hardware, interleave, read_values, versions, write_results
from lm.core.files import read_json
from lm.core.params import read_section
from lm.model import machine
from lm.model.config import ModelParams
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, sampling_weights, to_device, update_weights
from tools.common.statistics import welch

RESULT = RESULTS / "speedrun.json"
RECIPES = Path(__file__).with_suffix(".yaml")
NUM_CHARS = 8_900_000  # of the training text; recipes are scored on the rest
BEFORE_VALIDATION = {
    "sources.torch_headers.train.num_chars": NUM_CHARS,
    "sources.torch_headers.validation.split": "train",
    "sources.torch_headers.validation.start_char": NUM_CHARS,
}
STEPS_OF_A_TURN = 4
ROUNDS = 90
Step = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A name, and the values of all parameters that the recipes change."""

    name: str
    values: dict


def read_recipes() -> list[Recipe]:
    """Return the recipes of speedrun.yaml, each with the values of those before it."""
    recipes = []
    values = {}
    for row in yaml.safe_load(RECIPES.read_text()):
        values = values | row["changes"]
        recipes.append(Recipe(row["name"], values))
    return recipes


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The loss after a minute of training.")
    parser.add_argument("--seconds", type=float, default=60, help="of training (60)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters to try")
    parser.add_argument("--record", action="store_true", help="train every recipe of speedrun.yaml")
    parser.add_argument("--append", action="store_true", help="train the new ones and the one before")
    return parser.parse_args()


def machine_name() -> str:
    """Return the number of cores and the processor."""
    return "{cores} cores of {processor}".format_map(hardware())


def make_step(folder: Path) -> tuple[Step, int]:
    """Build a training step from a prepared folder; return it and its tokens."""
    # The model, as the stage `train` builds it.
    params = read_section(folder / "params.yaml", "train", TrainParams)
    name = read_section(folder / "params.yaml", "model.name", str)
    shape = read_section(folder / "presets.yaml", f"models.{name}", ModelParams)
    train = open_tokens(folder / "data" / "processed_datasets" / "train.bin")
    model = Gemma3Model(shape.config(train.vocab_size), params.numerics)
    device = torch.device("cpu")
    model.init_weights(torch.Generator().manual_seed(1))
    model.document_start_id = None if params.attend_across_documents else train.eot_id
    model.sampling_weights = sampling_weights(train.ids, train.vocab_size)
    if params.compile:
        model.compile()

    # Its optimizers, and the first batch, which every step uses.
    dtype = machine.resolve_dtype(params.dtype, device)
    ngrams = None
    if params.ngram_buckets:
        texts = load_tokenizer(folder / "data" / "tokenizer").token_texts
        ngrams = NgramEmbeddings(texts, train.vocab_size, params.ngram_buckets)
    state = TrainingState(model, build_optimizers(model, params, dtype, ngrams=ngrams))
    windows = TokenWindows(train.ids, params.seq_len, params.batch_size, 1)
    batch = to_device(windows.buffer(0), device)

    def step() -> None:
        compute_gradients(state, batch, params, dtype)
        update_weights(state, 1e-3)

    step()
    return step, params.batch_tokens


def take_steps(step: Step) -> None:
    """Take the steps of a turn."""
    for _ in range(STEPS_OF_A_TURN):
        step()


def token_rates(folders: list[Path]) -> list[dict]:
    """Measure the tokens per second of each folder's recipe in turns; return median, min and max.

    A machine's speed may drift from round to round by more than recipes differ. So the median is that of a recipe's
    speed relative to its round, times the median speed of the rounds.
    """
    steps = [make_step(folder) for folder in folders]
    turns = {str(number): functools.partial(take_steps, step) for number, (step, _) in enumerate(steps)}
    seconds = np.array(list(interleave(turns, ROUNDS).values()))  # (recipes, rounds)
    tokens_of_step = np.array([tokens for _, tokens in steps])
    rates = STEPS_OF_A_TURN * tokens_of_step[:, None] / seconds
    round_rates = rates.mean(axis=0)
    medians = np.median(rates / round_rates, axis=1) * np.median(round_rates)
    return [
        {"median": float(median), "min": float(own.min()), "max": float(own.max())}
        for median, own in zip(medians, rates, strict=True)
    ]


def train(folder: Path, num_tokens: int, seed: int) -> dict:
    """Train a number of tokens; return them, the seconds, and the bits per byte on the text after the training text."""
    return run_ours(folder, num_tokens, seed) | {"seed": seed, "bits_per_byte": bits_per_byte(folder)}


def record(folder: Path, args: argparse.Namespace) -> None:
    """Train every recipe with every seed, or with --append those that are not recorded yet, and write the result."""
    recipes = read_recipes()
    busy = [busy_share()]
    kept = recorded_rows(recipes, args) if args.append else []
    rows = train_recipes(folder, recipes[max(0, len(kept) - 1) :], args)
    if kept:
        rows[1]["runs_of_recipe_before"] = rows[0]["runs"]
        rows = kept + rows[1:]
    busy.append(busy_share())
    seconds = {row["recipe"]: [run["seconds"] for run in row["runs"]] for row in rows}
    write_results(
        "speedrun",
        seconds=seconds,
        ours=recipes[-1].name,
        busy=busy,
        budget_s=args.seconds,
        seeds=args.seeds,
        machine=machine_name(),
        threads=torch.get_num_threads(),
        rows=rows,
        versions=versions("torch"),
    )


def recorded_rows(recipes: list[Recipe], args: argparse.Namespace) -> list[dict]:
    """Return the rows of a result that new recipes can follow; exit if they are of other recipes, time or seeds."""
    found = read_json(RESULT)
    names = [each.name for each in recipes]
    recorded = [row["recipe"] for row in found["rows"]]
    if recorded != names[: len(recorded)] or len(recorded) == len(names):
        needed = f"they must be the first ones of {RECIPES.name}, and not all"
        sys.exit(f"error: {RESULT}: has the recipes {', '.join(recorded)}; {needed}")
    if (found["budget_s"], found["seeds"]) != (args.seconds, args.seeds):
        recorded_with = f"has {found['budget_s']:.0f} s and the seeds {found['seeds']}"
        sys.exit(f"error: {RESULT}: {recorded_with}; give the same by --seconds and --seeds")
    return found["rows"]


def train_recipes(folder: Path, recipes: list[Recipe], args: argparse.Namespace) -> list[dict]:
    """Train recipes in turns, and return a row for each, with its change from the one before."""
    # Measure how many tokens fit into the time.
    folders = [prepare(folder / str(i), BEFORE_VALIDATION | each.values) for i, each in enumerate(recipes)]
    rows = [
        {"recipe": each.name, "tokens_per_s": rate, "tokens": int(args.seconds * rate["median"]), "runs": []}
        for each, rate in zip(recipes, token_rates(folders), strict=True)
    ]

    # Train them, and compare each with the one before.
    for seed in args.seeds:
        for own, row in zip(folders, rows, strict=True):
            row["runs"].append(train(own, row["tokens"], seed))
            print(f"{row['recipe']}: {row['runs'][-1]}", flush=True)
    for before, row in itertools.pairwise(rows):
        row["change"] = welch(losses(before), losses(row))._asdict()
    for row in rows:
        row["bits_per_byte"] = float(losses(row).mean())
        row["tokens"] = row["runs"][0]["tokens"]  # of whole steps
    return rows


def losses(row: dict) -> np.ndarray:
    """Return the bits per byte (R,) of a recipe's runs."""
    return np.array([run["bits_per_byte"] for run in row["runs"]])


def try_once(folder: Path, args: argparse.Namespace) -> None:
    """Train the recipe of params.yaml, changed by --set, and print its rank among the recorded ones."""
    values = BEFORE_VALIDATION | {"train.numerics": "fast"} | read_values(args.set)
    folder = prepare(folder / "own", values)
    (rate,) = token_rates([folder])
    runs = [train(folder, int(args.seconds * rate["median"]), seed) for seed in args.seeds]
    for run in runs:
        loss = f"{run['bits_per_byte']:.4f} bits per byte"
        print(f"seed {run['seed']}: {loss}, {run['tokens']:,} tokens in {run['seconds']:.0f} s")
    mean_loss = statistics.mean(run["bits_per_byte"] for run in runs)
    print("\n".join(rank(mean_loss, args.seconds)))


def rank(loss: float, seconds: float) -> list[str]:
    """Return the lines of a table: the recorded recipes and this loss, the best one first."""
    found = read_json(RESULT)
    if machine_name() != found["machine"]:
        return [f"the recipes were recorded on {found['machine']}; this is {machine_name()}"]
    if seconds != found["budget_s"]:
        return [f"the recorded recipes trained for {found['budget_s']:.0f} s, this one for {seconds:.0f} s"]
    rows = [(row["bits_per_byte"], row["recipe"]) for row in found["rows"]]
    place = 1 + sum(other < loss for other, _ in rows)
    table = sorted([*rows, (loss, "← this run")])
    return [f"rank {place} of {len(table)} on {machine_name()}:", *(f"  {value:.4f}  {name}" for value, name in table)]


def main() -> None:
    """Record all recipes, or try one."""
    args = parse()
    machine.keep_freed_memory()
    print(f"{machine_name()}; numerics fast", flush=True)
    with tempfile.TemporaryDirectory(prefix="speedrun-") as name:
        if args.record or args.append:
            record(Path(name), args)
        else:
            try_once(Path(name), args)


if __name__ == "__main__":
    main()
