"""Compute what the longer runs of docs/experiments.md take: parameters, FLOP, memory, and hours on several machines.

A recipe is the command itself, so that the figures are those of its parameters. FLOP and memory are those that
training prints before the first step (lm.train.preflight). Hours are FLOP divided by FLOP per second: on two CPU
cores by what benchmarks/results/train_step.json measured for the model of the nearest size; on a GPU by a part of the
throughput that its maker states, which was not measured.
"""

import itertools
import json
import math
import shlex
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

from lm.core.params import coerce, read_yaml
from lm.model.gemma3 import ModelParams
from lm.train.config import TrainParams
from lm.train.preflight import Plan

ROOT = Path(__file__).resolve().parent.parent
PEAK_TFLOPS = {"RTX 4090": 165, "A100": 312, "H100": 989}  # bfloat16 without sparsity, as stated by the maker
UTILISATION = 0.4  # of it
VOCAB_SIZES = {"gpt2": 50_257}
STORIES, ADAMW = (
    "-S data.source=tinystories",
    "-S train.optimizer=adamw -S train.peak_lr=0.0006 -S train.min_lr=0.00006 -S train.beta1=0.9",
)
LARGE = (
    f"{STORIES} -S tokenizer.name=gpt2 -S model.name={{model}} -S train.compile=true",
    "-S train.seq_len={seq_len} -S train.micro_batch_tokens=8192 -S train.batch_tokens=262144",
    "-S train.numerics=fast -S train.sampled_vocab_size=null -S train.max_tokens=524288000",
    f"{ADAMW} -S train.beta2=0.95",
    "-S train.schedule=cosine -S train.warmup_steps=100",
    "-S train.log_every_tokens=2621440 -S train.eval_every_tokens=52428800 -S train.eval_tokens=524288",
)
RECIPES = {
    "A": (
        f"{STORIES} -S presets.yaml:tokenizers.bpe.vocab_size=16384 -S model.name=small",
        "-S train.seq_len=512 -S train.micro_batch_tokens=8192 -S train.batch_tokens=16384",
        "-S train.numerics=fast -S train.sampled_vocab_size=null -S train.max_tokens=32768000",
        ADAMW,
        "-S train.beta2=0.99 -S train.warmup_steps=100",
        "-S train.log_every_tokens=327680 -S train.eval_every_tokens=3276800 -S train.eval_tokens=131072",
    ),
    "B": tuple(line.format(model="gpt2_size", seq_len=1024) for line in LARGE),
    "C": tuple(line.format(model="gemma3_270m", seq_len=512) for line in LARGE),
}


class Cost(NamedTuple):
    """What a recipe takes: sizes, and hours by machine."""

    parameters: int
    tokens: int
    flops: float
    memory_bytes: int
    hours: dict[str, float]


def command(name: str) -> str:
    """Return the command of a recipe."""
    return "dvc exp run " + " \\\n    ".join(RECIPES[name])


def changed_params(text: str) -> tuple[dict, dict]:
    """Return params.yaml and presets.yaml with the -S values of a command."""
    files = {name: read_yaml(ROOT / name) for name in ("params.yaml", "presets.yaml")}
    words = shlex.split(text)
    for flag, word in itertools.pairwise(words):
        if flag == "-S":
            name, _, value = word.partition("=")
            file, _, name = name.rpartition(":")
            *sections, last = name.split(".")
            place = files[file or "params.yaml"]
            for section in sections:
                place = place[section]
            assert last in place, word
            place[last] = YAML(typ="safe").load(value)
    return files["params.yaml"], files["presets.yaml"]


def cost(text: str) -> Cost:
    """Return what a command takes; ParamsError if training would refuse its parameters."""
    params, presets = changed_params(text)
    train = coerce(params["train"], TrainParams, "train", text)
    tokenizer, model = params["tokenizer"]["name"], params["model"]["name"]
    vocab_size = presets["tokenizers"][tokenizer].get("vocab_size") or VOCAB_SIZES[tokenizer]
    config = coerce(presets["models"][model], ModelParams, f"models.{model}", text).config(vocab_size)
    plan = Plan(train, config, train.max_tokens, train.micro_batch_tokens)
    flops = plan.flops_per_step * plan.max_steps
    seconds = {"2 CPU cores": flops / measured_flops_per_s(plan.num_parameters)}
    seconds |= {name: flops / (UTILISATION * 1e12 * peak) for name, peak in PEAK_TFLOPS.items()}
    hours = {name: each / 3600 for name, each in seconds.items()}
    return Cost(plan.num_parameters, plan.max_tokens, flops, plan.memory_bytes, hours)


def measured_flops_per_s(num_parameters: int) -> float:
    """Return FLOP per second of the measured step of the model of the nearest size, bfloat16 on two cores."""
    path = ROOT / "benchmarks" / "results" / "train_step.json"
    steps = [step for step in json.loads(path.read_text())["questions"].values() if "tokens_per_s" in step]
    nearest = min(steps, key=lambda step: abs(math.log(step["parameters"] / num_parameters)))
    return nearest["tokens_per_s"]["ours"] * nearest["flop_per_token"]


def in_words(hours: float) -> str:
    """Return a time as `3 min`, `5.2 h` or `12 days`."""
    if hours < 1:
        return f"{max(1, round(60 * hours))} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"


def table() -> str:
    """Return a row for each recipe."""
    costs = {name: cost(command(name)) for name in RECIPES}
    machines = list(next(iter(costs.values())).hours)
    rows = [
        f"| recipe | parameters | tokens | FLOP | memory | {' | '.join(machines)} |",
        f"|---|--:|--:|--:|--:{'|--:' * len(machines)}|",
    ]
    for name, each in costs.items():
        cells = (
            name, f"{each.parameters / 1e6:.1f} M", f"{each.tokens / 1e6:.0f} M", f"{each.flops:.1e}",
            f"{each.memory_bytes / 2**30:.0f} GiB", *map(in_words, each.hours.values()),
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def commands() -> str:
    """Return every recipe's command after a comment with its name."""
    return "\n\n".join(f"# {name}\n{command(name)}" for name in RECIPES)
