"""Training steps on a GPU: ours beside transformers' Gemma 3 and a plain loop, in tokens a second and MFU.

    PYTHONPATH=src python benchmarks/gpu_step.py [--rounds 5] [--batch_size 32 --seq_len 1024]
    PYTHONPATH=src python benchmarks/gpu_step.py --device cpu --quick    # to see that it runs

Two presets of presets.yaml, gpt2_size with GPT-2's vocabulary and gemma3_270m with its own of 262,144, each
in bfloat16 with the fused AdamW. MFU is the share of the bfloat16 matmul peak, measured in the same rounds;
FLOP are those of lm.model.flops_per_token. All begin with the same weights, and the losses of their first
step are checked to be equal. The case "ours, compiled" uses FlexAttention's blocks in sliding layers; "ours,
compiled, dense masks" uses a dense mask. The result names the faster one. The loader's share is in
benchmarks/batches.py, which measures prefetching where there is a GPU. Writes benchmarks/results/gpu_step.json.
"""

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness import busy_share, interleave, ratios, summary, versions, write_results
from lm.core.params import read_section
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model, ModelParams, count_parameters, flops_per_token
from train_step import GEMMA_VOCAB_SIZE, GPT2_VOCAB_SIZE, LOSS_TOLERANCE, Variant, build, loss_of

ROOT = Path(__file__).resolve().parent.parent
PRESETS = {"gpt2_size": GPT2_VOCAB_SIZE, "gemma3_270m": GEMMA_VOCAB_SIZE}
BLOCKS, DENSE = "ours, compiled", "ours, compiled, dense masks"
CASES = (BLOCKS, DENSE, "ours", "transformers, compiled", "transformers", "plain loop")
WARM_UP_STEPS, TIMED_STEPS = 5, 10


def parse() -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="The speed of training steps on a GPU.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seq_len", type=int, default=1024)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one round: to see that it runs")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu_step.json")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is visible; --device cpu --quick shows that the benchmark runs")
    if args.quick:
        args.rounds, args.batch_size, args.seq_len = 1, 2, 32
    return args


def shape_of(preset: str, quick: bool) -> dict:
    """The preset with its vocabulary; shrunk if quick."""
    shape = vars(read_section(ROOT / "presets.yaml", f"models.{preset}", ModelParams)) | {"vocab_size": PRESETS[preset]}
    small = {"n_layer": 2, "n_head": 4, "n_kv_head": 2, "head_dim": 16, "d_model": 64, "d_ff": 128, "vocab_size": 2000}
    return shape | small if quick else shape


def make_model(case: str, variant: Variant, device: torch.device) -> nn.Module:
    """Whose model the case trains, on the device."""
    model = build(variant).to(device)
    if isinstance(model, Gemma3Model) and case in (BLOCKS, DENSE):
        model.compile()  # its blocks, as train.compile does
        model.is_compiled = case == BLOCKS  # decides which masks it takes
    return torch.compile(model) if case == "transformers, compiled" else model


def plain_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a loop that makes all logits (B, T, V), and turns them into float32."""
    return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())


def make_step(case: str, variant: Variant, device: torch.device) -> Callable[[], Tensor]:
    """One optimizer step of a case on a batch that lies on the device; it returns the loss."""
    model = make_model(case, variant, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(
        variant.config.vocab_size, (variant.batch_size, variant.seq_len + 1), generator=torch.Generator().manual_seed(1)
    ).to(device)
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    loss_function = plain_loss if case == "plain loop" else loss_of

    def step() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_function(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def timed(step: Callable[[], Tensor], steps: int) -> None:
    """Run a number of steps and wait until the last one has ended."""
    for _ in range(steps):
        loss = step()
    loss.item()


def measure(preset: str, args: argparse.Namespace) -> tuple[dict, dict[str, list[float]]]:
    """What the rounds of one preset found, and the seconds of TIMED_STEPS steps by case."""
    device, shape = torch.device(args.device), shape_of(preset, args.quick)
    kinds = {case: not case.startswith("transformers") for case in CASES}
    variants = {c: Variant(ours, "bfloat16", True, shape, args.batch_size, args.seq_len) for c, ours in kinds.items()}
    steps = {case: make_step(case, variant, device) for case, variant in variants.items()}
    losses = {case: step().item() for case, step in steps.items()}
    assert max(losses.values()) - min(losses.values()) < LOSS_TOLERANCE, losses
    for step in steps.values():
        timed(step, WARM_UP_STEPS)
    peaks = []
    cases = {case: lambda step=step: timed(step, TIMED_STEPS) for case, step in steps.items()}
    size = 512 if args.quick else 8192
    look = {"peak": lambda: peaks.append(machine.matmul_peak_flops(device, torch.bfloat16, size))}
    seconds = interleave(cases | look, args.rounds)
    del seconds["peak"], steps, cases
    gc.collect()
    return describe(variants["ours"], seconds, peaks) | {"losses_of_the_first_step": losses}, seconds


def describe(variant: Variant, seconds: dict[str, list[float]], peaks: list[float]) -> dict:
    """Rates, MFU within the rounds, ratios to ours; prints a line for each."""
    tokens = variant.batch_size * variant.seq_len * TIMED_STEPS
    flops = flops_per_token(variant.config, variant.seq_len)["total"] * tokens
    mfu = {c: summary([flops / s / p for s, p in zip(times, peaks, strict=True)]) for c, times in seconds.items()}
    rates = {case: summary([tokens / s for s in times]) for case, times in seconds.items()}
    for case in seconds:
        print(f"{case}: {rates[case]['median']:,.0f} tokens/s, {mfu[case]['median']:.1%} of the peak", flush=True)
    faster = max((BLOCKS, DENSE), key=lambda case: rates[case]["median"])
    print(f"faster masks: {faster}", flush=True)
    return {
        "parameters": count_parameters(variant.config)["total"],
        "batch": [variant.batch_size, variant.seq_len],
        "bf16_peak_tflops": summary([peak / 1e12 for peak in peaks]),
        "tokens_per_s": rates,
        "mfu": mfu,
        "faster_masks": faster,
        "seconds": seconds,
        "times_longer_than_ours": ratios(seconds, CASES[0]),
    }


def main() -> None:
    """Measure both presets and write the results."""
    args = parse()
    busy, found = [busy_share()], {}
    for preset in PRESETS:
        found[preset], seconds = measure(preset, args)
        busy.append(busy_share())
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    write_results(
        args.out, "gpu_step", seconds=seconds, ours=CASES[0], busy=busy, gpu=gpu, presets=found,
        versions=versions("torch", "transformers", "triton"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
