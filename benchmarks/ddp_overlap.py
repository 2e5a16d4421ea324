"""Gradients averaged after the backward pass, as lm.train.world does, or during it: two ranks on this machine (gloo).

    PYTHONPATH=src:benchmarks python benchmarks/ddp_overlap.py [--model tiny --rounds 21 --steps 3]

A third case, which averages nothing, bounds what any overlap can gain. Both averages are checked to have the same bits
first. Each rank has one thread and one micro-batch. Writes benchmarks/results/ddp_overlap.json.
"""

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from harness import busy_share, interleave, versions, write_results
from lm.core.params import read_section
from lm.model.gemma3 import Gemma3Model, ModelParams
from lm.train.config import TrainParams
from lm.train.step import accumulate_gradients
from lm.train.world import World
from recorded import ROOT

NUM_RANKS, VOCAB_SIZE = 2, 2048
BUCKET_NUMBERS = 1 << 18  # in one all-reduce during the backward pass: several for a small model
OURS, DURING, WITHOUT = "after the backward pass", "during the backward pass", "not averaged"


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The time of a step's gradients on two ranks.")
    parser.add_argument("--model", default="tiny", help="of presets.yaml")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=3, help="in a round")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ddp_overlap.json")
    return parser.parse_args()


class Overlap:
    """Average gradients in buckets, each as soon as the backward pass has filled it."""

    def __init__(self, model: Gemma3Model):
        self.is_on = False
        self.pending: list[Tensor] = []
        self.sent: list[tuple[list[Tensor], Tensor, dist.Work]] = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._add)

    def _add(self, p: Tensor) -> None:
        # Hooks are called in the order of the backward pass, which is the same on all ranks.
        if self.is_on:
            self.pending.append(p.grad)
            if sum(grad.numel() for grad in self.pending) >= BUCKET_NUMBERS:
                self._send()

    def _send(self) -> None:
        flat = torch.cat([grad.flatten() for grad in self.pending])
        self.sent.append((self.pending, flat, dist.all_reduce(flat, async_op=True)))
        self.pending = []

    def finish(self) -> None:
        """Wait for all buckets, in the order in which they were sent, and write the means into the gradients."""
        if self.pending:
            self._send()
        for grads, flat, work in self.sent:
            work.wait()
            flat /= NUM_RANKS
            for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(mean.view_as(grad))
        self.sent = []


class Gradients:
    """The gradients of a model, computed on one micro-batch per rank and averaged in each of three ways."""

    def __init__(self, model_name: str, world: World, steps: int):
        params = read_section(ROOT / "params.yaml", "train", TrainParams)
        config = read_section(ROOT / "presets.yaml", f"models.{model_name}", ModelParams).config(VOCAB_SIZE)
        self.model, self.world, self.steps = Gemma3Model(config), world, steps
        self.model.init_weights(torch.Generator().manual_seed(params.seed))
        self.overlap = Overlap(self.model)
        shape = (params.batch_size // NUM_RANKS, params.seq_len + 1)
        ids = torch.from_numpy(np.random.default_rng(world.rank).integers(0, VOCAB_SIZE, shape))
        self.batch = ids[:, :-1], ids[:, 1:]

    def compute(self) -> None:
        """Compute the gradients of each step and average nothing."""
        for _ in range(self.steps):
            self.model.zero_grad()
            accumulate_gradients(self.model, *self.batch, 1, torch.float32)
            self.overlap.finish()

    def average_after(self) -> None:
        """Average after the backward pass, as training does."""
        for _ in range(self.steps):
            self.model.zero_grad()
            accumulate_gradients(self.model, *self.batch, 1, torch.float32)
            self.world.average(0.0, self.model.parameters())

    def average_during(self) -> None:
        """Average buckets during the backward pass."""
        self.overlap.is_on = True
        self.compute()
        self.overlap.is_on = False

    def bits(self, average: Callable[[], None]) -> bytes:
        """Return the bytes of all gradients after this average."""
        average()
        return b"".join(p.grad.numpy().tobytes() for p in self.model.parameters())


def measure(rank: int, store: str, args: argparse.Namespace) -> None:
    """Be a rank; the main rank prints, and writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, NUM_RANKS), rank=rank, world_size=NUM_RANKS)
    gradients = Gradients(args.model, World(rank, NUM_RANKS, rank, NUM_RANKS), args.steps)
    assert gradients.bits(gradients.average_after) == gradients.bits(gradients.average_during)
    cases = {OURS: gradients.average_after, DURING: gradients.average_during, WITHOUT: gradients.compute}
    with contextlib.nullcontext() if rank == 0 else contextlib.redirect_stdout(io.StringIO()):
        busy = [busy_share()]
        dist.barrier()
        seconds = interleave(cases, args.rounds)
        dist.barrier()
        busy.append(busy_share())
    if rank == 0:
        numbers = sum(p.numel() for p in gradients.model.parameters())
        write_results(
            args.out, "ddp_overlap", seconds=seconds, ours=OURS, busy=busy, model=args.model, gradient_numbers=numbers,
            bucket_numbers=BUCKET_NUMBERS, tokens_per_rank=gradients.batch[0].numel(), steps=args.steps,
            versions=versions("torch"),
        )  # fmt: skip
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (f"{folder}/store", parse()), NUM_RANKS)


if __name__ == "__main__":
    main()
