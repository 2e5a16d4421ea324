"""Time training steps: ours beside transformers' Gemma 3, in tokens per second and as a share of the matmul peak.

    PYTHONPATH=src:benchmarks python benchmarks/speed/train_step.py [--rounds 5] [--device cuda] [--quick]

Questions on a CPU, each with its own interleaved rounds:
- 30m: a model of 30 M parameters with 50,257 entries, in float32 and bfloat16, compiled or not;
- 270m: the shape of Gemma 3 270M with 50,257 entries, both sides under the same autocast;
- memory: Gemma 3 270M with all its 262,144 entries, trained by the stage itself: how much memory does it take?
On a GPU (--device cuda): the presets gpt2_size and gemma3_270m in bfloat16.

Each case is a process of its own, because the allocator's settings hold for a whole process. All begin with the same
weights, and the losses of their first step must be equal. The peak is that of bfloat16 products, measured in the same
rounds. With ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment a CPU is measured without AMX. `--quick` shrinks
everything, to see that it runs, and writes no result. Writes results/NAME.json, by default results/train_step.json.
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from torch import nn

from harness import (
    ROOT,
    busy_share,
    change_params,
    interleave,
    ratios,
    run_stage,
    stage_folder,
    summary,
    versions,
    write_results,
)
from lm.core.params import read_section
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token
from lm.tokens.tokenfile import write_tokens
from tools.common.hugging_face import hugging_face_config, to_hugging_face

GPT2_VOCAB_SIZE = 50_257
GEMMA_VOCAB_SIZE = 262_144
SMALL_SHAPE = {  # nanoGPT's 6 layers of width 384, as Gemma 3: 29.9 M parameters
    "n_layer": 6,
    "n_head": 6,
    "n_kv_head": 6,
    "head_dim": 64,
    "d_model": 384,
    "d_ff": 1024,
    "sliding_window": 1024,
    "full_attention_every": 1,
    "rope_base_local": 10000.0,
    "rope_base_global": 10000.0,
    "query_pre_attn_scalar": 64,
    "norm_eps": 1e-6,
    "max_seq_len": 1024,
}
TINY_SHAPE = {"n_layer": 2, "n_head": 4, "n_kv_head": 2, "head_dim": 16, "d_model": 64, "d_ff": 128, "vocab_size": 2000}
LOSS_TOLERANCE = 0.01  # nats, between formats and implementations


@dataclasses.dataclass(frozen=True)
class Case:
    """One process: whose model, in what format, with or without the allocator's tuning, compiled or not."""

    ours: bool
    dtype: str = "bfloat16"
    keep_freed_memory: bool = True
    compiled: bool = False


CPU_CASES = {
    "30m": {
        "ours": Case(True),
        "ours, compiled": Case(True, compiled=True),
        "ours, allocator as it is": Case(True, keep_freed_memory=False),
        "ours, float32": Case(True, "float32"),
        "transformers, float32": Case(False, "float32", keep_freed_memory=False),
        "transformers, float32, allocator tuned": Case(False, "float32"),
    },
    "270m": {
        "ours": Case(True),
        "ours, allocator as it is": Case(True, keep_freed_memory=False),
        "transformers, autocast": Case(False, keep_freed_memory=False),
        "transformers, autocast, allocator tuned": Case(False),
    },
}
GPU_CASES = {
    "ours, compiled": Case(True, compiled=True),
    "ours": Case(True),
    "transformers, compiled": Case(False, compiled=True),
    "transformers": Case(False),
}


# The worker: one case in its own process.


def build(case: Case, config: ModelConfig, device: torch.device) -> nn.Module:
    """Return the model drawn from seed 1, as ours or as transformers' with the same weights."""
    model = Gemma3Model(config)
    model.init_weights(torch.Generator().manual_seed(1))
    if case.ours:
        model.to(device)
        if case.compiled:
            model.compile()
        return model
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(config)))
    missing, unexpected = theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
    theirs.tie_weights()
    theirs.to(device)
    return torch.compile(theirs) if case.compiled else theirs


def mean_loss(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean nats of targets (B, T) after ids (B, T)."""
    if isinstance(model, Gemma3Model):
        return model.loss(ids, targets)
    return model(input_ids=ids, labels=targets, shift_labels=targets, use_cache=False).loss


def work(case: Case, shape: dict, batch: tuple[int, int], steps: int, device: torch.device) -> None:
    """Take two steps and print the loss of the first; then, for each line read, `steps` steps and the memory so far."""
    if case.keep_freed_memory:
        machine.keep_freed_memory()
    config = ModelConfig(**shape)
    dtype = machine.COMPUTE_DTYPES[case.dtype]
    model = build(case, config, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = np.random.default_rng(1).integers(config.vocab_size, size=(batch[0], batch[1] + 1))
    x = torch.from_numpy(ids[:, :-1].copy()).to(device)
    y = torch.from_numpy(ids[:, 1:].copy()).to(device)

    def step() -> torch.Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = mean_loss(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    loss = step().item()
    step()  # the first one of the optimizer is slower
    print(json.dumps({"loss": loss}), flush=True)
    for _ in sys.stdin:
        for _ in range(steps):
            loss = step()
        loss.item()
        unit_bytes = 1 if sys.platform == "darwin" else 1024
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
        print(json.dumps({"peak_rss_gib": round(peak_bytes / 2**30, 3)}), flush=True)


class Worker:
    """A case in a process that waits to be asked for steps."""

    def __init__(self, *task):
        command = [sys.executable, __file__, "--worker", json.dumps(task)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer = json.loads(self.process.stdout.readline())
        self.loss = self.answer["loss"]

    def step(self) -> None:
        """Have it take the steps of a turn."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.answer = json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """Let it end."""
        self.process.stdin.close()
        self.process.wait()


# The measurement.


def compare(cases: dict[str, Case], shape: dict, batch: tuple[int, int], args: argparse.Namespace) -> dict:
    """Run rounds of one turn of each case and one look at the peak; the first case is ours."""
    workers = {}
    peaks = []
    device = torch.device(args.device)
    steps = 10 if args.device == "cuda" else 1
    if args.quick:
        sizes = (256,)  # of square matrices; the best counts
    elif args.device == "cuda":
        sizes = (8192,)
    else:
        sizes = (512, 1024, 2048)

    def look() -> None:
        peaks.append(max(machine.matmul_peak_flops(device, torch.bfloat16, size) for size in sizes))

    try:
        for name, case in cases.items():
            workers[name] = Worker(dataclasses.asdict(case), shape, batch, steps, device.type)
        losses = {name: worker.loss for name, worker in workers.items()}
        assert max(losses.values()) - min(losses.values()) < LOSS_TOLERANCE, losses
        turns = {name: worker.step for name, worker in workers.items()} | {"peak": look}
        seconds = interleave(turns, args.rounds)
        memory = {name: worker.answer["peak_rss_gib"] for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.close()
    del seconds["peak"]

    # Compare each turn with the peak of its round.
    num_sequences, seq_len = batch
    tokens = num_sequences * seq_len * steps
    config = ModelConfig(**shape)
    flop_per_token = flops_per_token(config, seq_len)["total"]
    flop = flop_per_token * tokens
    shares = {}
    for name, times in seconds.items():
        shares[name] = summary([flop / time_s / peak for time_s, peak in zip(times, peaks, strict=True)])
    return {
        "shape": shape,
        "parameters": count_parameters(config)["total"],
        "batch": batch,
        "seconds": seconds,
        "flop_per_token": flop_per_token,
        "bf16_peak_gflops": summary([peak / 1e9 for peak in peaks]),
        "tokens_per_s": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "share_of_bf16_peak": shares,
        "times_longer_than_ours": ratios(seconds, next(iter(cases))),
        "losses_of_the_first_step": losses,
        "peak_rss_gib": memory,
    }


def memory_of_large_vocabulary(shape: dict, seq_len: int, steps: int, keep_freed_memory: bool) -> dict:
    """Train the shape by the stage itself on random ids, one sequence a step; return its peak of resident memory."""
    vocab_size = shape["vocab_size"]
    with tempfile.TemporaryDirectory(prefix="train-step-") as name:
        folder = stage_folder(Path(name))
        dtype = "uint32" if vocab_size > 1 << 16 else "uint16"
        data = folder / "data" / "processed_datasets"
        ids = np.random.default_rng(1).integers(vocab_size - 1, size=64 * seq_len).astype(dtype)
        tokenizer = {"vocab_size": vocab_size, "eot_id": vocab_size - 1, "sha256": "0"}
        for split in ("train", "validation"):
            write_tokens(data / f"{split}.bin", [ids], dtype, lambda: {"tokenizer": tokenizer})
        model = {key: value for key, value in shape.items() if key != "vocab_size"}
        values = {
            "models.measured": model,
            "model.name": "measured",
            "train.numerics": "fast",
            "train.warmup_steps": 1,
            "train.seq_len": seq_len,
            "train.batch_tokens": seq_len,
            "train.micro_batch_tokens": seq_len,
            "train.eval_tokens": seq_len,
            "train.max_tokens": steps * seq_len,
            "train.eval_every_tokens": steps * seq_len,
            "train.log_every_tokens": steps * seq_len,
            "runtime.yaml:train.keep_freed_memory": keep_freed_memory,
        }
        change_params(folder, values)
        used = run_stage(folder, "train")
    return {"keep_freed_memory": keep_freed_memory, "vocab_size": vocab_size, "steps": steps, **used}


def questions(device: str, quick: bool) -> dict[str, tuple[dict, tuple[int, int], dict[str, Case]]]:
    """Return shape, sequences and tokens of a batch, and cases by question; shrunk if quick."""
    medium = vars(read_section(ROOT / "presets.yaml", "models.gpt2_size", ModelParams))
    large = vars(read_section(ROOT / "presets.yaml", "models.gemma3_270m", ModelParams))
    gpt2 = {"vocab_size": GPT2_VOCAB_SIZE}
    gemma = {"vocab_size": GEMMA_VOCAB_SIZE}
    if device == "cuda":
        found = {
            "gpt2_size": (medium | gpt2, (32, 1024), GPU_CASES),
            "gemma3_270m": (large | gemma, (32, 1024), GPU_CASES),
        }
    else:
        found = {
            "30m": (SMALL_SHAPE | gpt2, (16, 256), CPU_CASES["30m"]),
            "270m": (large | gpt2, (2, 256), CPU_CASES["270m"]),
            "memory": (large | gemma, (1, 256), {}),
        }
    if quick:
        found = {name: (shape | TINY_SHAPE, (2, 32), cases) for name, (shape, _, cases) in found.items()}
    return found


def main() -> None:
    """Answer the questions one after the other and write the results; as a worker, take steps."""
    parser = argparse.ArgumentParser(description="The time and memory of training steps.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, no result: to see that it runs")
    parser.add_argument("--only", help="one of the questions")
    parser.add_argument("--name", default="train_step", help="of the file of results")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        case, shape, batch, steps, device = args.worker
        return work(Case(**case), shape, batch, steps, torch.device(device))

    # Answer the questions.
    machine.keep_freed_memory()  # or the peak of matrix products would be one of page faults
    busy = [busy_share()]
    found = {}
    for name, (shape, batch, cases) in questions(args.device, args.quick).items():
        if args.only not in (None, name):
            continue
        if cases:
            found[name] = compare(cases, shape, batch, args)
        else:
            found[name] = {"runs": [memory_of_large_vocabulary(shape, batch[1], 3, keep) for keep in (True, False)]}
        busy.append(busy_share())
        print(json.dumps(found[name].get("tokens_per_s", found[name]), indent=1))
    if args.quick:
        return None

    # Write the results; the times beside the machine are those of the first question with cases.
    seconds = next((each["seconds"] for each in found.values() if "seconds" in each), {"ours": []})
    write_results(
        args.name,
        seconds=seconds,
        ours=next(iter(seconds)),
        busy=busy,
        questions=found,
        gpu=torch.cuda.get_device_name() if args.device == "cuda" else None,
        threads=torch.get_num_threads(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        onednn_max_cpu_isa=os.environ.get("ONEDNN_MAX_CPU_ISA"),
        versions=versions("torch", "transformers", "numpy"),
    )


if __name__ == "__main__":
    main()
