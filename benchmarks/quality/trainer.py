"""Bits per byte after equal processor seconds: the default, and Hugging Face's Trainer with the same model and tokens.

    OMP_NUM_THREADS=1 PYTHONPATH=src:benchmarks python benchmarks/quality/trainer.py [--seconds 60 120 --seeds 1 2]

The Trainer keeps its defaults (AdamW, no warm-up, a linear decay to the last step, batches of 8) except for the
learning rate: that of LEARNING_RATES which is best after the first budget. Ours is the stage `train` with the default
parameters. A run's steps are chosen by the speed of the one before. Start-up does not count, nor does the Trainer's
import. Both are trained and scored on text before the validation text. Writes results/trainer.json.
"""

import argparse
import itertools
import math
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import yaml
from speedrun import BEFORE_VALIDATION
from time_to_loss import bits_per_byte, prepare, run_ours

from harness import busy_share, versions, write_results
from lm.core.params import read_section
from lm.model.config import ModelParams
from lm.model.score import score_tokens
from lm.tokens.tokenfile import open_tokens
from tools.common.hugging_face import hugging_face_config, read_pretrained

LEARNING_RATES = (1e-3, 3e-3, 1e-2)
BATCH_TOKENS = 2048  # of both: the Trainer's 8 sequences of 256 tokens


def train_trainer(folder: Path, num_steps: int, seed: int, learning_rate: float) -> float:
    """Train the model of a prepared folder with the Trainer, save it, and return the processor seconds."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Trainer, TrainingArguments, set_seed

    tokens = open_tokens(folder / "data" / "processed_datasets" / "train.bin")
    seq_len = read_section(folder / "params.yaml", "train.seq_len", int)
    name = read_section(folder / "params.yaml", "model.name", str)
    shape = read_section(folder / "presets.yaml", f"models.{name}", ModelParams).config(tokens.vocab_size)
    ids = torch.from_numpy(tokens.ids[: len(tokens.ids) // seq_len * seq_len].astype(np.int64))
    blocks = [{"input_ids": block, "labels": block} for block in ids.view(-1, seq_len)]
    set_seed(seed)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(shape)))
    arguments = TrainingArguments(
        str(folder / "trainer"), max_steps=num_steps, learning_rate=learning_rate, seed=seed, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=blocks)
    start = time.process_time()
    trainer.train()
    seconds = time.process_time() - start
    trainer.save_model()
    return seconds


def train_ours(folder: Path, num_steps: int, seed: int) -> float:
    """Run the stage `train`; return the processor seconds of its process, start-up included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_ours(folder, num_steps * BATCH_TOKENS, seed)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_a_process(function: Callable, *arguments) -> float:
    """Call a function in a fresh process, so that no run finds what another left in memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def score_trainer(folder: Path) -> float:
    """Return the bits per byte of the Trainer's model, computed as `bits_per_byte` computes those of ours."""
    validation = open_tokens(folder / "data" / "processed_datasets" / "validation.bin")
    seq_len = read_section(folder / "params.yaml", "train.seq_len", int)
    losses, _ = score_tokens(read_pretrained(folder / "trainer"), validation, seq_len, seq_len, 32, torch.float32)
    return float(losses.sum(dtype="float64")) / math.log(2) / validation.meta["utf8_bytes"]


class Side:
    """One way to train: `train(num_steps, seed, …)` returns processor seconds, `score()` the bits per byte."""

    def __init__(self, name: str, train: Callable, score: Callable):
        self.name, self.train, self.score, self.runs = name, train, score, []

    def measure(self, few: int, many: int, *arguments) -> None:
        """Measure a step and the start-up by two short runs."""
        seconds = [self.train(steps, 1, *arguments) for steps in (few, many)]
        self.step_s = (seconds[1] - seconds[0]) / (many - few)
        self.start_s = seconds[0] - few * self.step_s
        print(f"{self.name}: {self.start_s:.1f} s, {1000 * self.step_s:.0f} ms a step", flush=True)

    def run(self, budget_s: float, seed: int, *arguments) -> dict:
        """Train as many steps as the budget allows by the speed of the run before; return the run."""
        steps = round(budget_s / self.step_s)
        seconds = self.train(steps, seed, *arguments) - self.start_s
        self.step_s = seconds / steps
        run = {"budget_s": budget_s, "seed": seed, "learning_rate": arguments, "processor_s": seconds}
        self.runs.append(run | {"tokens": steps * BATCH_TOKENS, "bits_per_byte": self.score()})
        print(f"{self.name}: {self.runs[-1]}", flush=True)
        return self.runs[-1]


def compare(folder: Path, budgets: list[float], seeds: list[int]) -> dict[str, list[dict]]:
    """Return the runs of both sides; those of the Trainer begin with the search for its learning rate."""
    ours = Side("ours", partial(train_ours, folder), partial(bits_per_byte, folder))
    theirs = Side("Trainer", partial(in_a_process, train_trainer, folder), partial(score_trainer, folder))
    ours.measure(21, 61)  # it warms up for 20 steps
    theirs.measure(2, 12, LEARNING_RATES[0])
    search = [theirs.run(budgets[0], seeds[0], rate) for rate in LEARNING_RATES]
    (rate,) = min(search, key=lambda run: run["bits_per_byte"])["learning_rate"]
    for budget_s, seed in itertools.product(budgets, seeds):
        ours.run(budget_s, seed)
        if (budget_s, seed) != (budgets[0], seeds[0]):  # which the search has trained
            theirs.run(budget_s, seed, rate)
    return {side.name: side.runs for side in (ours, theirs)}


def main() -> None:
    """Compare and write the results."""
    parser = argparse.ArgumentParser(description="Bits per byte after equal processor seconds.")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60, 120], help="of one thread")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    args, busy = parser.parse_args(), [busy_share()]
    with tempfile.TemporaryDirectory(prefix="trainer-") as name:
        folder = prepare(Path(name) / "data", BEFORE_VALIDATION)
        runs = compare(folder, args.seconds, args.seeds)
        params = yaml.safe_load((folder / "params.yaml").read_text())
    write_results(
        "trainer", seconds={"ours": [run["processor_s"] for run in runs["ours"]]}, ours="ours",
        busy=[*busy, busy_share()], runs=runs, train=params["train"], threads=torch.get_num_threads(),
        versions=versions("torch", "transformers", "accelerate"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
