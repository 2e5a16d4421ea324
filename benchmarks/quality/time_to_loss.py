"""How long training takes to the loss of nanoGPT's CPU recipe after three minutes, on the default corpus.

    PYTHONPATH=src:benchmarks python benchmarks/quality/time_to_loss.py [--seeds 1 2 3] [--set train.peak_lr=0.01]

Both train on the same slice of text, tokenized by the pipeline's own stages (the reference with 4,096
entries, ours with those of params.yaml), and both are scored by lm.model.score over the whole validation file
in non-overlapping windows, in bits per byte. Seconds are those of training: evaluation is not counted. The
reference runs once for the longest budget and is read along its way. Ours runs once for each budget,
since its schedule ends with its tokens, whose number is chosen by the speed measured before; it is the
stage `train` as it stands. Writes results/time_to_loss.json.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import yaml

from harness import busy_share, change_params, read_values, run_stage, stage_folder, versions, write_results
from lm.core.files import read_json
from lm.core.params import read_section
from lm.model import machine
from lm.model.score import score_tokens
from lm.model.weights import load_trained
from lm.tokens.tokenfile import open_tokens

REFERENCE_VOCAB_SIZE = 4096
TRIAL_STEPS = 100  # that measure the speed
MARGIN = 0.97  # of the budget, so that a run that is a little slower than the one before keeps it
DATA_STAGES = ("fetch", "make_tokenizer", "tokenize_train", "tokenize_val")


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Seconds of training to a loss.")
    parser.add_argument("--budgets", type=float, nargs="+", default=[30, 60, 180], help="seconds of ours")
    parser.add_argument("--reference_s", type=float, default=180, help="seconds of the reference")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of ours")
    parser.add_argument("--eval_every_s", type=float, default=15, help="between points of the reference's curve")
    return parser.parse_args()


def prepare(folder: Path, values: dict) -> Path:
    """Fetch and tokenize the default corpus in a folder of its own, with these parameters."""
    stage_folder(folder)
    change_params(folder, values)
    for stage in DATA_STAGES:
        run_stage(folder, stage)
    return folder


def run_reference(folder: Path, seconds: float, eval_every_s: float, seed: int) -> list[dict]:
    """Train nanoGPT's recipe; return its curve: seconds, tokens, bits_per_byte."""
    script = Path(__file__).with_name("reference_gpt.py")
    data = folder / "data" / "processed_datasets"
    options = ["--seconds", str(seconds), "--eval_every_s", str(eval_every_s), "--seed", str(seed)]
    command = [sys.executable, script, data, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_ours(folder: Path, tokens: int, seed: int) -> dict:
    """Train a number of tokens with the stage; return seconds, tokens and its peak of memory in GiB.

    The stage's clock includes its validations; they are reduced to one window before the first step,
    which is subtracted, and one after the last, which is not.
    """
    # Train whole steps.
    section = yaml.safe_load((folder / "params.yaml").read_text())["train"]
    num_steps = max(1, tokens // section["batch_tokens"])
    tokens = num_steps * section["batch_tokens"]
    values = {
        "train.seed": seed,
        "train.max_tokens": tokens,
        "train.eval_every_tokens": tokens,
        "train.eval_tokens": section["seq_len"],
    }
    change_params(folder, values)
    used = run_stage(folder, "train")

    # Read its clock.
    run = read_json(folder / "data" / "models" / "model.json")["fingerprint"]
    timing = read_json(folder / ".runs" / run / "timing.json")
    trained = timing["tokens"][-1]
    assert trained == tokens, f"{trained} tokens trained, {tokens} wanted"
    seconds = timing["seconds"][-1] - timing["seconds"][0]
    return {"seconds": seconds, "tokens": tokens, "peak_rss_gib": used["peak_rss_gib"]}


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


def curve_of_ours(folder: Path, budgets: list[float], seed: int) -> list[dict]:
    """Train once for each budget of seconds, from the shortest on; a few steps measure the speed first."""
    section = yaml.safe_load((folder / "params.yaml").read_text())["train"]
    trial = run_ours(folder, TRIAL_STEPS * section["batch_tokens"], seed)
    tokens_per_s = trial["tokens"] / trial["seconds"]
    points = []
    for budget in sorted(budgets):
        run = run_ours(folder, int(budget * MARGIN * tokens_per_s), seed)
        point = {"budget_s": budget, **run, "bits_per_byte": bits_per_byte(folder)}
        points.append(point)
        tokens_per_s = run["tokens"] / run["seconds"]
        print(f"ours, seed {seed}: {point}", flush=True)
    return points


def seconds_to(target: float, curve: list[dict]) -> float | None:
    """Return the training seconds of the smallest budget whose run is at or below the target, or None."""
    for point in curve:
        if point["bits_per_byte"] <= target:
            return point["seconds"]
    return None


def run_seed(reference: Path, ours: Path, args: argparse.Namespace, seed: int) -> dict:
    """Run both sides with one seed; return their curves, and how long ours takes to the last loss of the reference."""
    theirs = run_reference(reference, args.reference_s, args.eval_every_s, seed)
    own = curve_of_ours(ours, args.budgets, seed)
    target = theirs[-1]["bits_per_byte"]
    reached = {"reference": theirs[-1]["seconds"], "ours": seconds_to(target, own)}
    print(f"seed {seed}: {target:.3f} bits per byte after {reached} seconds", flush=True)
    curves = {"reference": theirs, "ours": own}
    return {"seed": seed, "curves": curves, "target_bits_per_byte": target, "seconds_to_target": reached}


def main() -> None:
    """Prepare the data, run every seed, write the results."""
    args = parse()
    busy = [busy_share()]
    runs = []
    with tempfile.TemporaryDirectory(prefix="time-to-loss-") as name:
        reference = prepare(Path(name) / "reference", {"tokenizers.bpe.vocab_size": REFERENCE_VOCAB_SIZE})
        ours = prepare(Path(name) / "ours", {"train.numerics": "fast", **read_values(args.set)})
        params = yaml.safe_load((ours / "params.yaml").read_text())
        presets = yaml.safe_load((ours / "presets.yaml").read_text())
        for seed in args.seeds:
            runs.append(run_seed(reference, ours, args, seed))
            busy.append(busy_share())
    reached = [run["seconds_to_target"] for run in runs if None not in run["seconds_to_target"].values()]
    write_results(
        "time_to_loss",
        seconds={name: [run[name] for run in reached] for name in ("ours", "reference")},
        ours="ours",
        busy=busy,
        budgets_s=args.budgets,
        reference_s=args.reference_s,
        runs=runs,
        train=params["train"],
        model=presets["models"][params["model"]["name"]],
        threads=torch.get_num_threads(),
        versions=versions("torch"),
    )


if __name__ == "__main__":
    main()
