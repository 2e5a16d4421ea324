"""Training steps on the CPU: ours beside plain torch, in tokens a second and as a share of the matmul peak.

    PYTHONPATH=src python benchmarks/train_step.py [--quick] [--rounds 5]

Three questions, each with its own interleaved rounds:
- a model of 30 M parameters with 50,257 entries: what share of the bfloat16 matmul peak, measured in the
  same rounds, does a step reach, what share do its matrix products reach alone, and how much longer takes
  transformers' Gemma 3 in float32 (what a plain script does on a CPU)?
- the shape of Gemma 3 270M: how much longer takes transformers' own under the same autocast?
- Gemma 3 270M with all its 262,144 entries, trained by the stage itself: how much memory does it take?
Each variant is a process of its own, because the allocator's settings hold for a whole process. All
begin with the same weights and the losses of their first step are checked to be equal. FLOP are those
of lm.model.flops_per_token. Writes benchmarks/results/train_step.json.

With AMX the peak is about twelve times that of AVX512_BF16 alone and memory no faster, so that the products
of these shapes reach half of it at best; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment
everything is measured without AMX.
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bare_products import bare_products
from harness import busy_share, interleave, ratios, summary, versions, write_results
from large_vocabulary import memory_of_large_vocabulary
from lm.core.params import read_section
from lm.model import device as machine
from lm.model.gemma3 import (
    Gemma3Model,
    ModelConfig,
    ModelParams,
    count_parameters,
    flops_per_token,
)
from stages import peak_gib
from tools.common.hugging_face import hugging_face_config, to_hugging_face

ROOT = Path(__file__).resolve().parent.parent
GPT2_VOCAB_SIZE, GEMMA_VOCAB_SIZE = 50_257, 262_144
SMALL_SHAPE = {  # nanoGPT's 6 layers of width 384, as Gemma 3: 29.9 M parameters
    "n_layer": 6, "n_head": 6, "n_kv_head": 6, "head_dim": 64, "d_model": 384, "d_ff": 1024, "sliding_window": 1024,
    "full_attention_every": 1, "rope_base_local": 10000.0, "rope_base_global": 10000.0, "query_scale": 64,
    "norm_eps": 1e-6, "max_seq_len": 1024,
}  # fmt: skip
CASES = {  # by question: ours or transformers', format, whether the allocator keeps freed memory, compiled or not
    "30m": {
        "ours": (True, "bfloat16", True),
        "ours, compiled": (True, "bfloat16", True, True),
        "ours, allocator as it is": (True, "bfloat16", False),
        "ours, float32": (True, "float32", True),
        "transformers, float32": (False, "float32", False),
    },
    "270m": {
        "ours": (True, "bfloat16", True),
        "ours, allocator as it is": (True, "bfloat16", False),
        "transformers, autocast": (False, "bfloat16", False),
        "transformers, autocast, allocator tuned": (False, "bfloat16", True),
    },
}
PEAK_SIZES = (512, 1024, 2048)  # of square matrices; the best counts
PRODUCTS = "the matrix products of ours alone"
LOSS_TOLERANCE = 0.01  # nats, between formats and implementations


@dataclasses.dataclass(frozen=True)
class Variant:
    """One process: whose model, in what format, with or without the allocator's tuning, compiled or not."""

    ours: bool
    dtype: str
    keep_freed_memory: bool
    shape: dict
    batch_size: int
    seq_len: int
    compiled: bool = False

    @property
    def config(self) -> ModelConfig:
        """The shape as the model takes it."""
        return ModelConfig(**self.shape)


# The worker: one variant in its own process.


def build(variant: Variant) -> nn.Module:
    """The model drawn from seed 1, as ours or as transformers' with the same weights."""
    model = Gemma3Model(variant.config)
    model.init_weights(torch.Generator().manual_seed(1))
    if variant.compiled:
        model.compile()
    if variant.ours:
        return model
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(variant.config)))
    missing, unexpected = theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
    theirs.tie_weights()
    return theirs


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean nats a token, by each model's own loss."""
    if isinstance(model, Gemma3Model):
        return model.loss(x, y)
    return model(input_ids=x, labels=y, shift_labels=y, use_cache=False).loss


def work(variant: Variant) -> None:
    """Take two steps and say the loss of the first; then, for each line read, one step and the memory so far."""
    if variant.keep_freed_memory:
        machine.keep_freed_memory()
    model, dtype = build(variant), machine.COMPUTE_DTYPES[variant.dtype]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = np.random.default_rng(1).integers(variant.config.vocab_size, size=(variant.batch_size, variant.seq_len + 1))
    x, y = torch.from_numpy(ids[:, :-1].copy()), torch.from_numpy(ids[:, 1:].copy())  # transformers views y

    def step() -> float:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    loss = step()
    step()  # the first one of the optimizer is slower
    print(json.dumps({"loss": loss}), flush=True)
    for _ in sys.stdin:
        step()
        print(json.dumps({"peak_rss_gib": peak_gib(resource.getrusage(resource.RUSAGE_SELF))}), flush=True)


class Worker:
    """A variant in a process that waits to be asked for steps."""

    def __init__(self, variant: Variant):
        command = [sys.executable, __file__, "--worker", json.dumps(dataclasses.asdict(variant))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer = json.loads(self.process.stdout.readline())
        self.loss = self.answer["loss"]

    def step(self) -> None:
        """Have it take one step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.answer = json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """Let it end."""
        self.process.stdin.close()
        self.process.wait()


# The measurement.


def compare(cases: dict[str, Variant], rounds: int) -> dict:
    """Rounds of one step of each case and one look at the peak; the first case is ours."""
    workers, peaks, ours = {}, [], next(iter(cases.values()))
    products = bare_products(ours.config, ours.batch_size, ours.seq_len, machine.COMPUTE_DTYPES[ours.dtype])
    try:
        for name, variant in cases.items():
            workers[name] = Worker(variant)
        losses = {name: worker.loss for name, worker in workers.items()}
        assert max(losses.values()) - min(losses.values()) < LOSS_TOLERANCE, losses
        steps = {name: worker.step for name, worker in workers.items()}
        seconds = interleave({**steps, PRODUCTS: products, "peak": lambda: peaks.append(matmul_peak())}, rounds)
        memory = {name: worker.answer["peak_rss_gib"] for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    return report(cases, seconds, peaks) | {"losses_of_the_first_step": losses, "peak_rss_gib": memory}


def matmul_peak() -> float:
    """FLOP/s of bfloat16 matrix products, the best of a few sizes."""
    return max(machine.matmul_peak_flops(torch.device("cpu"), torch.bfloat16, size) for size in PEAK_SIZES)


def report(cases: dict[str, Variant], seconds: dict[str, list[float]], peaks: list[float]) -> dict:
    """Rates, shares of the peak of the same round, and ratios to ours; prints a line for each."""
    ours, variant = next(iter(cases.items()))
    tokens = variant.batch_size * variant.seq_len
    flops = flops_per_token(variant.config, variant.seq_len)["total"] * tokens
    seconds = {name: times for name, times in seconds.items() if name != "peak"}
    shares = {
        name: summary([flops / s / peak for s, peak in zip(times, peaks, strict=True)])
        for name, times in seconds.items()
    }
    found = {
        "shape": variant.shape,
        "parameters": count_parameters(variant.config)["total"],
        "batch": [variant.batch_size, variant.seq_len],
        "flop_per_token": flops / tokens,
        "bf16_peak_gflops": summary([peak / 1e9 for peak in peaks]),
        "seconds": seconds,
        "tokens_per_s": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "share_of_bf16_peak": shares,
        "times_longer_than_ours": ratios(seconds, ours),
    }
    for name in seconds:
        longer = found["times_longer_than_ours"].get(name, {"median": 1.0})["median"]
        print(
            f"{name}: {found['tokens_per_s'][name]:,.0f} tokens/s, {shares[name]['median']:.1%} of the peak, "
            f"{longer:.2f} times as long as ours"
        )
    return found


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The time and memory of training steps on the CPU.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny shapes and vocabularies: to see that it runs")
    parser.add_argument("--only", choices=("30m", "270m", "memory"), help="one of the three")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "train_step.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def questions(quick: bool) -> dict[str, tuple[dict, int, int]]:
    """Shape, sequences and tokens of a sequence by question; shrunk if quick."""
    large = vars(read_section(ROOT / "presets.yaml", "models.gemma3_270m", ModelParams))
    found = {
        "30m": (SMALL_SHAPE | {"vocab_size": GPT2_VOCAB_SIZE}, 16, 256),
        "270m": (large | {"vocab_size": GPT2_VOCAB_SIZE}, 2, 256),
        "memory": (large | {"vocab_size": GEMMA_VOCAB_SIZE}, 1, 256),
    }
    if quick:
        tiny = {"n_layer": 2, "n_head": 4, "n_kv_head": 2, "head_dim": 16, "d_model": 64, "d_ff": 128}
        found = {name: (shape | tiny | {"vocab_size": 2000}, 2, 32) for name, (shape, *_) in found.items()}
    return found


def answer(name: str, shape: dict, batch_size: int, seq_len: int, rounds: int) -> dict:
    """What the question's runs find."""
    if name == "memory":
        found = [memory_of_large_vocabulary(shape, seq_len, 3, keep) for keep in (True, False)]
        print("\n".join(map(str, found)))
        return {"runs": found}
    cases = {case: Variant(*kind[:3], shape, batch_size, seq_len, *kind[3:]) for case, kind in CASES[name].items()}
    return compare(cases, rounds)


def main() -> None:
    """Answer the questions one after the other and write the results."""
    args = parse()
    if args.worker:
        return work(Variant(**json.loads(args.worker)))
    machine.keep_freed_memory()  # or the peak of matrix products would be one of page faults
    busy, found = [busy_share()], {}
    for name, question in questions(args.quick).items():
        if args.only in (None, name):
            found[name] = answer(name, *question, args.rounds)
            busy.append(busy_share())
    compared = found.get("30m") or found.get("270m") or {"seconds": {"ours": []}}
    write_results(
        args.out, "train_step", seconds=compared["seconds"], ours="ours", busy=busy, questions=found,
        threads=torch.get_num_threads(), instruction_set=torch.backends.cpu.get_cpu_capability(),
        onednn_max_cpu_isa=os.environ.get("ONEDNN_MAX_CPU_ISA"), versions=versions("torch", "transformers", "numpy"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
