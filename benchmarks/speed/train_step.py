"""Time training steps: ours beside transformers' Gemma 3, in tokens per second and as a share of the matmul peak.

    PYTHONPATH=src:benchmarks python benchmarks/speed/train_step.py [--rounds 5] [--only 30m] [--quick]

- 30m: a model of 30 M parameters with 50,257 entries, in float32 and bfloat16, compiled or not;
- 270m: the shape of Gemma 3 270M with 50,257 entries, both sides in bfloat16.

All cases begin with the same weights, keep freed memory, and take turns; the losses of their first step must be equal.
The peak is that of bfloat16 products, measured in the same rounds. With ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the
environment, AMX is off. `--quick` shrinks everything, to see that it runs, and writes no result. Writes
results/NAME.json, by default results/train_step.json.
"""

import argparse
import os
import statistics
from collections.abc import Callable
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from torch import Tensor, nn

from harness import ROOT, busy_share, interleave, ratios, summary, versions, write_results
from lm.core.params import read_section
from lm.model import machine
from lm.model.config import ModelConfig, ModelParams
from lm.model.gemma3 import Gemma3Model, count_parameters, flops_per_token
from tools.common.hugging_face import hugging_face_config
from tools.common.readers import build_with_transformers

SMALL = ModelConfig(  # nanoGPT's 6 layers of width 384, as Gemma 3: 29.9 M parameters
    vocab_size=50_257,
    n_layer=6,
    n_head=6,
    n_kv_head=6,
    head_dim=64,
    d_model=384,
    d_ff=1024,
    sliding_window=1024,
    full_attention_every=1,
    rope_base_local=10000.0,
    rope_base_global=10000.0,
    query_pre_attn_scalar=64,
    norm_eps=1e-6,
    max_seq_len=1024,
)
LOSS_TOLERANCE = 0.01  # nats, between formats and implementations
PEAK_SIZES = (512, 1024, 2048)  # of square matrices; the best counts


class Case(NamedTuple):
    """Whose model, in what format, compiled or not."""

    is_ours: bool
    dtype: torch.dtype = torch.bfloat16
    is_compiled: bool = False


CASES = {
    "30m": {
        "ours": Case(True),
        "ours, compiled": Case(True, is_compiled=True),
        "ours, float32": Case(True, torch.float32),
        "transformers, float32": Case(False, torch.float32),
    },
    "270m": {
        "ours": Case(True),
        "transformers, autocast, allocator tuned": Case(False),
    },
}


def mean_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the mean nats of targets (B, T) after ids (B, T)."""
    if isinstance(model, Gemma3Model):
        return model.loss(ids, targets)
    return model(input_ids=ids, labels=targets, shift_labels=targets, use_cache=False).loss


def make_step(case: Case, config: ModelConfig, batch: tuple[int, int]) -> Callable[[], float]:
    """Return a function that takes a step and returns its loss; the model is drawn from seed 1."""
    ours = Gemma3Model(config)
    ours.init_weights(torch.Generator().manual_seed(1))
    model = ours if case.is_ours else build_with_transformers(ours).train()
    if case.is_compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    num_sequences, seq_len = batch
    ids = np.random.default_rng(1).integers(config.vocab_size, size=(num_sequences, seq_len + 1))
    x = torch.from_numpy(ids[:, :-1].copy())
    y = torch.from_numpy(ids[:, 1:].copy())

    def step() -> float:
        with torch.autocast("cpu", case.dtype, enabled=case.dtype != torch.float32):
            loss = mean_loss(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def compare(cases: dict[str, Case], config: ModelConfig, batch: tuple[int, int], rounds: int) -> dict:
    """Run rounds of one step of each case and one look at the peak; the first case is ours."""
    # The first two steps are slower, for they allocate and compile.
    steps = {name: make_step(case, config, batch) for name, case in cases.items()}
    losses = {name: step() for name, step in steps.items()}
    assert max(losses.values()) - min(losses.values()) < LOSS_TOLERANCE, losses
    for step in steps.values():
        step()

    peaks = []

    def look() -> None:
        flops = [machine.matmul_peak_flops(torch.device("cpu"), torch.bfloat16, size) for size in PEAK_SIZES]
        peaks.append(max(flops))

    seconds = interleave(steps | {"peak": look}, rounds)
    del seconds["peak"]

    # Compare each step with the peak of its round.
    num_sequences, seq_len = batch
    tokens = num_sequences * seq_len
    flop = flops_per_token(config, seq_len)["total"] * tokens
    shares = {}
    for name, times in seconds.items():
        shares[name] = summary([flop / time_s / peak for time_s, peak in zip(times, peaks, strict=True)])
    return {
        "shape": hugging_face_config(config),
        "parameters": count_parameters(config)["total"],
        "batch": batch,
        "seconds": seconds,
        "bf16_peak_gflops": summary([peak / 1e9 for peak in peaks]),
        "tokens_per_s": {name: tokens / statistics.median(times) for name, times in seconds.items()},
        "share_of_bf16_peak": shares,
        "times_longer_than_ours": ratios(seconds, "ours"),
        "losses_of_the_first_step": losses,
    }


def main() -> None:
    """Answer the questions one after the other and write the results."""
    parser = argparse.ArgumentParser(description="The time of training steps.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tiny shape, no result: to see that it runs")
    parser.add_argument("--only", choices=CASES, help="one of the questions")
    parser.add_argument("--name", default="train_step", help="of the file of results")
    args = parser.parse_args()
    machine.keep_freed_memory()
    large = read_section(ROOT / "presets.yaml", "models.gemma3_270m", ModelParams).config(50_257)
    tiny = read_section(ROOT / "presets.yaml", "models.tiny", ModelParams).config(2000)
    questions = {"30m": (SMALL, (16, 256)), "270m": (large, (2, 256))}

    busy = [busy_share()]
    found = {}
    for name in [args.only] if args.only else questions:
        config, batch = (tiny, (2, 32)) if args.quick else questions[name]
        found[name] = compare(CASES[name], config, batch, args.rounds)
        busy.append(busy_share())
        print(found[name]["tokens_per_s"])
    if args.quick:
        return

    write_results(
        args.name,
        seconds=next(iter(found.values()))["seconds"],
        ours="ours",
        busy=busy,
        questions=found,
        threads=torch.get_num_threads(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        onednn_max_cpu_isa=os.environ.get("ONEDNN_MAX_CPU_ISA"),
        versions=versions("torch", "transformers", "numpy"),
    )


if __name__ == "__main__":
    main()
