"""Training steps of the default model with train.attend_across_documents true and false, in turns.

    OMP_NUM_THREADS=1 PYTHONPATH=src:benchmarks python benchmarks/document_mask.py [--rounds 7] [--steps 8]

The ids are random; what matters is how long the documents are: 1,900 tokens on average, as in the default corpus, or
200, as short stories. Parameters are those of params.yaml but for the window and its batch, which stays 1,024 tokens.
The settings take turns after every step. Times are those of the processor (time.process_time), with one thread, and
only the ratio within a round is quoted, because other processes may keep the machine busy. Writes
benchmarks/results/document_mask.json.
"""

import argparse
import dataclasses
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from harness import busy_share, hardware, ratios, versions
from lm.core.files import write_json
from lm.core.params import read_section
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model, ModelParams
from lm.tokens.windows import TokenWindows
from lm.train import step
from lm.train.batches import to_device
from lm.train.config import TrainParams
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState

ROOT = Path(__file__).resolve().parent.parent
VOCAB_SIZE, EOT, NUM_TOKENS = 8192, 0, 1_000_000
SEQ_LENS, DOCUMENT_TOKENS = (128, 512), (1900, 200)
ACROSS, WITHIN = "across documents", "within documents"


def draw_stream(document_tokens: int) -> np.ndarray:
    """Return random ids (NUM_TOKENS,) uint16 with an EOT after each document, of geometric length."""
    rng = np.random.default_rng(1)
    ids = rng.integers(1, VOCAB_SIZE, NUM_TOKENS, np.uint16)
    ids[rng.random(NUM_TOKENS) < 1 / document_tokens] = EOT
    return ids


class Training:
    """A model in training; a call takes its next step."""

    def __init__(self, ids: np.ndarray, params: TrainParams, dtype: torch.dtype):
        config = read_section(ROOT / "presets.yaml", "models.tiny", ModelParams).config(VOCAB_SIZE)
        model = Gemma3Model(config)
        model.init_weights(torch.Generator().manual_seed(params.seed))
        model.document_start_id = None if params.attend_across_documents else EOT
        self.state = TrainingState(model, build_optimizers(model, params, dtype))
        self.windows = TokenWindows(ids, params.seq_len, params.batch_size, params.seed)
        self.params, self.dtype = params, dtype

    def __call__(self) -> float:
        """Return the seconds of processor time that the step took."""
        batch = to_device(self.windows.buffer(self.state.step), "cpu")
        start = time.process_time()
        step.compute_gradients(self.state, batch, self.params, self.dtype)
        step.update_weights(self.state, 1e-3)
        return time.process_time() - start


def measure(seq_len: int, document_tokens: int, dtype: torch.dtype, rounds: int, steps: int) -> dict:
    """Return the seconds of both settings in each round, and how many times longer the second one takes."""
    base = dataclasses.replace(
        read_section(ROOT / "params.yaml", "train", TrainParams), seq_len=seq_len, numerics="fast"
    )
    ids = draw_stream(document_tokens)
    cases = {
        name: Training(ids, dataclasses.replace(base, attend_across_documents=name == ACROSS), dtype)
        for name in (ACROSS, WITHIN)
    }
    for case in cases.values():
        case()  # the first step is slower
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        times = {name: 0.0 for name in cases}
        for number in range(steps):
            for name in list(cases)[:: 1 if number % 2 else -1]:
                times[name] += cases[name]()
        for name in cases:
            seconds[name].append(times[name])
    return {
        "seq_len": seq_len, "document_tokens": document_tokens, "seconds": seconds,
        "times_longer": ratios(seconds, ACROSS)[WITHIN],
        "tokens_per_cpu_second": {n: base.batch_tokens * steps / statistics.median(seconds[n]) for n in seconds},
    }  # fmt: skip


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Training steps with attention across and within documents.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of each setting in a round (8)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "document_mask.json")
    return parser.parse_args()


def main() -> None:
    """Measure each window with each length of documents and write the results."""
    args = parse()
    machine.keep_freed_memory()
    dtype = machine.resolve_dtype("auto", torch.device("cpu"))
    busy, found = [busy_share()], []
    for seq_len in SEQ_LENS:
        for document_tokens in DOCUMENT_TOKENS:
            found.append(measure(seq_len, document_tokens, dtype, args.rounds, args.steps))
            busy.append(busy_share())
            print(f"{seq_len} tokens, documents of {document_tokens}: {found[-1]['times_longer']}", flush=True)
    write_json(args.out, {
        "benchmark": "document_mask", "hardware": hardware(), "busy_shares": busy, "rounds": args.rounds,
        "steps_per_round": args.steps, "dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads(),
        "versions": versions("torch", "numpy"), "cases": found,
    })  # fmt: skip


if __name__ == "__main__":
    main()
