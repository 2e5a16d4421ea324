"""The loss of the head and its gradients: ours beside torch's F.linear_cross_entropy and two plain calls.

    PYTHONPATH=src python benchmarks/cross_entropy.py [--rounds 7] [--device cuda --out benchmarks/results/…json]

Each case computes the mean nats of N tokens and the gradients of the input (N, C) and of the head (V, C), both float32,
under autocast to bfloat16, as training does. Losses and gradients are compared first. Writes
benchmarks/results/cross_entropy.json.
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
from lm.model.kernels import cross_entropy

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {  # tokens, width, vocabulary
    "small": (2048, 128, 8192),
    "30 M parameters": (2048, 384, 50_257),
    "shape of Gemma 3 270M": (512, 640, 262_144),
}
OURS, CHUNKS = "ours", "F.linear_cross_entropy in chunks"
TOLERANCE = 0.02  # of the loss and of the norm of a gradient: bfloat16 has 8 bits
REPEATS = 3  # of a turn


def ours(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Compute the loss as the model does."""
    return cross_entropy(h, head, targets, max(1, MAX_LOGITS // len(head)))


def in_chunks(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Compute it by torch's own function in parts, which keep few logits in memory."""
    return F.linear_cross_entropy(h, head, targets, options=torch.nn.LinearCrossEntropyOptions())


def plain(h: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Compute it from all logits in float32, as a plain loop does."""
    return F.cross_entropy(F.linear(h, head).float(), targets)


CASES: dict[str, Callable[..., Tensor]] = {
    OURS: ours,
    "F.linear_cross_entropy": F.linear_cross_entropy,
    CHUNKS: in_chunks,
    "linear, then cross_entropy": plain,
}


def loss_and_gradients(loss: Callable[..., Tensor], operands: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Return the loss and the gradients (N, C) and (V, C)."""
    h, head, targets = operands
    with torch.autocast(h.device.type, torch.bfloat16):
        nats = loss(h, head, targets)
    return [nats.detach(), *torch.autograd.grad(nats, [h, head])]


def draw(shape: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return an input (N, C) of root mean square 1, a head (V, C) as `init_weights` draws it, and targets (N,)."""
    num_tokens, width, vocab_size = shape
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(num_tokens, width, generator=generator)
    head = torch.randn(vocab_size, width, generator=generator) * width**-0.5 / 4
    targets = torch.randint(vocab_size, (num_tokens,), generator=generator).to(device)
    return *(x.to(device).requires_grad_() for x in (h, head)), targets  # pyright: ignore[reportReturnType]


def measure(shape: tuple[int, int, int], device: torch.device, rounds: int) -> dict:
    """Measure one shape; return the seconds of a turn by case, and what follows from them."""
    operands = draw(shape, device)
    wanted = loss_and_gradients(plain, operands)
    for name, loss in CASES.items():
        for found, exact in zip(loss_and_gradients(loss, operands), wanted, strict=True):
            error = float((found - exact).norm() / exact.norm())
            assert error < TOLERANCE, (name, error)

    def turn(loss: Callable[..., Tensor]) -> None:
        for _ in range(REPEATS):
            loss_and_gradients(loss, operands)
        machine.synchronize(device)

    seconds = interleave({name: lambda loss=loss: turn(loss) for name, loss in CASES.items()}, rounds, {CHUNKS: 2})
    milliseconds = {name: summary([1e3 * s / REPEATS for s in times]) for name, times in seconds.items()}
    gc.collect()
    return {
        "shape": shape,
        "seconds": seconds,
        "milliseconds": milliseconds,
        "times_longer_than_ours": ratios(seconds, OURS),
    }


def main() -> None:
    """Measure every shape, print the ratios and write them."""
    parser = argparse.ArgumentParser(description="The loss of the head and its gradients.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cross_entropy.json")
    args = parser.parse_args()
    machine.keep_freed_memory()
    busy, found = [busy_share()], {}
    for name in args.shapes:
        found[name] = measure(SHAPES[name], torch.device(args.device), args.rounds)
        print(name, {case: round(ratio["median"], 2) for case, ratio in found[name]["times_longer_than_ours"].items()})
        busy.append(busy_share())
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    write_results(
        args.out, "cross_entropy", seconds=found[args.shapes[-1]]["seconds"], ours=OURS, busy=busy, gpu=gpu,
        shapes=found, versions=versions("torch"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
