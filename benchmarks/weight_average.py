"""Compare the weights of the default run with averages of them (`train.average_decay`), over training seeds.

    OMP_NUM_THREADS=1 PYTHONPATH=src:benchmarks python benchmarks/weight_average.py [--seeds 1 2 3 4 5]

All averages of a seed are those of one training in portable numerics, so that its differences are paired and their bits
depend on no machine. The losses are those of the text after the training text and before the default validation text,
in windows spread as those that select the best model: after 40 % of the tokens, where the default's learning rate
begins to fall, after 70 %, and at the end. A second kind of average begins as Adam's moments do, with the weight
(1 - decay) / (1 - decay^step) of each step (Kingma and Ba 2015, section 3). Writes
benchmarks/results/weight_average.json after each seed.
"""

import argparse
import dataclasses
import math
import statistics
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import torch
import yaml

from harness import hardware, versions
from lm.core.files import write_json
from lm.core.params import read_section
from lm.model.gemma3 import Gemma3Model, ModelParams
from lm.tokens.tokenfile import open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.batches import to_device
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.schedule import learning_rate
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, update_weights, validation_loss
from speedrun import BEFORE_VALIDATION
from time_to_loss import prepare
from tools.common.statistics import student_t_p_value, student_t_quantile

RESULTS = Path(__file__).parent / "results" / "weight_average.json"
DECAYS, ADAM_DECAYS = (0.9, 0.95, 0.98, 0.995), (0.98, 0.99)
PERCENTS = (40, 70, 100)  # of the run's tokens
RAW = "weights"


class StartedAsAdam(TrainingState):
    """A state whose average is corrected for its start as Adam's moments are."""

    def update_average(self) -> None:
        """Move the average toward the weights."""
        weights, decay = self.model.state_dict(), self.average_decay
        self.average = self.average or {name: value.clone() for name, value in weights.items()}
        for name, value in weights.items():
            self.average[name].lerp_(value, (1 - decay) / (1 - decay**self.step))


def train_seed(folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Train once; return {percent of the tokens: {weights or average: loss in nats per token}}."""
    params = dataclasses.replace(read_section(folder / "params.yaml", "train", TrainParams), seed=seed)
    shape = read_section(
        folder / "presets.yaml", f"models.{read_section(folder / 'params.yaml', 'model.name', str)}", ModelParams
    )
    train, held_out = (
        open_tokens(folder / "data/processed_datasets" / f"{name}.bin") for name in ("train", "validation")
    )
    model, device = Gemma3Model(shape.config(train.vocab_size)), torch.device("cpu")
    model.init_weights(torch.Generator().manual_seed(seed))
    model.document_start_id = None if params.attend_across_documents else train.eot_id
    state = TrainingState(model, build_optimizers(model, params, torch.float32))
    averages = {f"average_decay {decay}": TrainingState(model, [], average_decay=decay) for decay in DECAYS}
    averages |= {f"as Adam, {decay}": StartedAsAdam(model, [], average_decay=decay) for decay in ADAM_DECAYS}
    windows, losses = TokenWindows(train.ids, params.seq_len, params.batch_size, seed), {}
    for step in range(params.max_steps):
        compute_gradients(state, to_device(windows.buffer(step), device), params, torch.float32)
        update_weights(state, learning_rate(step, params))
        for average in averages.values():
            average.step = state.step
            average.update_average()
        if state.step in [params.max_steps * percent // 100 for percent in PERCENTS]:
            measured = {RAW: state, **averages}
            found = {name: validation_loss(each, held_out, params, torch.float32) for name, each in measured.items()}
            losses[str(100 * state.step // params.max_steps)] = found
            print(f"seed {seed}, step {state.step}: {found}", flush=True)
    return losses


def compare(runs: list[dict]) -> dict[str, dict[str, dict]]:
    """Return for each percentage and average the paired difference to the weights over seeds, in nats per token."""
    return {
        percent: {
            name: paired([run[percent][name] - run[percent][RAW] for run in runs]) for name in names if name != RAW
        }
        for percent, names in runs[0].items()
    }


def paired(differences: list[float]) -> dict:
    """Return the mean of paired differences, its 95 % interval and p-value by Student's t (two-sided)."""
    mean, df = statistics.fmean(differences), len(differences) - 1
    if not df:
        return {"mean": mean}
    se = statistics.stdev(differences) / math.sqrt(len(differences))
    half = student_t_quantile(0.95, df) * se
    return {"mean": mean, "low": mean - half, "high": mean + half, "p_value": student_t_p_value(mean / se, df)}


def main() -> None:
    """Prepare the text, train each seed, and write the results."""
    parser = argparse.ArgumentParser(description="Averages of the weights against the weights.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of a trial")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args, losses = parser.parse_args(), {}
    with tempfile.TemporaryDirectory(prefix="weight-average-") as name:
        changes = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in args.set)}
        folder = prepare(Path(name) / "run", {**BEFORE_VALIDATION, "train.numerics": "portable", **changes})
        params = dataclasses.asdict(read_section(folder / "params.yaml", "train", TrainParams))
        for seed in args.seeds:
            losses[str(seed)] = train_seed(folder, seed)
            write_json(args.out, {
                "benchmark": "weight_average", "hardware": hardware(), "versions": versions("torch", "numpy"),
                "train": params, "nats_per_token": losses, "differences": compare(list(losses.values())),
            })  # fmt: skip


if __name__ == "__main__":
    main()
