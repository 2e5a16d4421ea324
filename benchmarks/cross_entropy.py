"""The loss of the head and its gradients: ours beside torch's F.linear_cross_entropy and two plain calls.

    PYTHONPATH=src python benchmarks/cross_entropy.py [--rounds 7] [--device cuda --out benchmarks/results/…json]

Inputs and weights are bfloat16, as under autocast. Each case computes the mean nats of N tokens and the gradients of
the input (N, C) and of the head (V, C), which are compared first. Writes benchmarks/results/cross_entropy.json.
"""

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from harness import busy_share, interleave, ratios, summary, versions, write_results
from lm.model import device as machine
from lm.model.gemma3 import MAX_LOGITS
from lm.model.kernels import CrossEntropyFunction

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {  # tokens, width, vocabulary
    "default": (2048, 128, 8192),
    "30 M parameters": (2048, 384, 50_257),
    "shape of Gemma 3 270M": (512, 640, 262_144),
}
OURS, CHUNKS = "ours", "F.linear_cross_entropy in chunks"
GRADIENT_TOLERANCE = 0.02  # of the norm: bfloat16 has 8 bits
REPEATS = 3  # of a turn


def ours(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The loss that the model computes."""
    return CrossEntropyFunction.apply(h, head, targets, max(1, MAX_LOGITS // len(head)))


def in_chunks(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """torch's own in parts, which keep few logits in memory."""
    return F.linear_cross_entropy(h, head, targets, options=torch.nn.LinearCrossEntropyOptions())


def plain(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """All logits in float32, as a plain loop computes them."""
    return F.cross_entropy(F.linear(h, head).float(), targets)


CASES: dict[str, Callable[..., Tensor]] = {
    OURS: ours,
    "F.linear_cross_entropy": F.linear_cross_entropy,
    CHUNKS: in_chunks,
    "linear, then cross_entropy": plain,
}


def gradients(loss: Callable[..., Tensor], operands: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """The gradients (N, C) and (V, C) in float32."""
    h, head, targets = operands
    return [g.float() for g in torch.autograd.grad(loss(h, head, targets), [h, head])]


def draw(shape: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """An input of unit norm, a head as `init_weights` draws it, and targets."""
    num_tokens, width, vocab_size = shape
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(num_tokens, width, generator=generator)
    head = torch.randn(vocab_size, width, generator=generator) * width**-0.5
    targets = torch.randint(vocab_size, (num_tokens,), generator=generator).to(device)
    return *(x.to(device, torch.bfloat16).requires_grad_() for x in (h, head)), targets  # pyright: ignore[reportReturnType]


def measure(shape: tuple[int, int, int], device: torch.device, rounds: int) -> tuple[dict, dict[str, list[float]]]:
    """What the rounds of one shape found, and the seconds of a turn by case."""
    operands = draw(shape, device)
    wanted = gradients(plain, operands)
    for name, loss in CASES.items():
        for found, exact in zip(gradients(loss, operands), wanted, strict=True):
            error = float((found - exact).norm() / exact.norm())
            assert error < GRADIENT_TOLERANCE, (name, error)

    def turn(loss: Callable[..., Tensor]) -> None:
        for _ in range(REPEATS):
            gradients(loss, operands)
        machine.synchronize(device)

    seconds = interleave({name: lambda loss=loss: turn(loss) for name, loss in CASES.items()}, rounds, {CHUNKS: 2})
    milliseconds = {name: summary([1e3 * s / REPEATS for s in times]) for name, times in seconds.items()}
    gc.collect()
    return {"shape": shape, "milliseconds": milliseconds, "times_longer_than_ours": ratios(seconds, OURS)}, seconds


def main() -> None:
    """Measure every shape, print the ratios and write them."""
    parser = argparse.ArgumentParser(description="The loss of the head and its gradients.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cross_entropy.json")
    args = parser.parse_args()
    machine.keep_freed_memory()
    busy, found, seconds = [busy_share()], {}, {}
    for name in args.shapes:
        found[name], seconds = measure(SHAPES[name], torch.device(args.device), args.rounds)
        print(name, {case: round(ratio["median"], 2) for case, ratio in found[name]["times_longer_than_ours"].items()})
        busy.append(busy_share())
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    write_results(
        args.out, "cross_entropy", seconds=seconds, ours=OURS, busy=busy, gpu=gpu, shapes=found,
        versions=versions("torch"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
