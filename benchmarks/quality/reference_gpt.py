"""The plain way to train a small GPT on a CPU, for time_to_loss.py to compare with.

    PYTHONPATH=src python benchmarks/quality/reference_gpt.py FOLDER [--seconds 180 --eval_every_s 15 --seed 1]

The model and recipe of nanoGPT's CPU quick start: LayerNorm, learned positions, GELU, tied head, 4 layers
of width 128, blocks of 64 tokens, 12 a batch drawn at random row by row, AdamW at 1e-3 with warm-up and
cosine, float32, nothing tuned. The cosine ends with the last of `--seconds`, which count training alone.
FOLDER holds train.bin and validation.bin. Each line printed is a point of the curve: {seconds, tokens,
bits_per_byte}, over the whole validation file in non-overlapping blocks.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.model.score import score_tokens
from lm.tokens.tokenfile import TokenFile, open_tokens

BLOCK = 64
BATCH = 12
PEAK_LR = 1e-3
MIN_LR = 1e-4
WARMUP_STEPS = 100
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.1
GRAD_CLIP = 1.0


class Size(NamedTuple):
    """The shape of a GPT; `block` is the most tokens that it sees."""

    num_layers: int
    num_heads: int
    width: int
    block: int


CPU_SIZE = Size(num_layers=4, num_heads=4, width=128, block=BLOCK)
GPT2 = Size(num_layers=12, num_heads=12, width=768, block=1024)  # 124 M parameters


class Block(nn.Module):
    """Causal attention and an MLP, each after a LayerNorm and added to x (B, T, C)."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.ln_1 = nn.LayerNorm(width)
        self.ln_2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln_1(x)).split(C, dim=2)
        q = q.view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, D)
        k = k.view(B, T, self.num_heads, -1).transpose(1, 2)
        v = v.view(B, T, self.num_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """ids (B, T) → logits (B, T, V)."""

    device = torch.device("cpu")
    numerics = "fast"

    def __init__(self, vocab_size: int, size: Size = CPU_SIZE):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, size.width)
        self.wpe = nn.Embedding(size.block, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.num_heads) for _ in range(size.num_layers)))
        self.ln_f = nn.LayerNorm(size.width)

        # Layers that are added to the residual stream begin smaller.
        for name, weight in self.named_parameters():
            if name.endswith(("proj.weight", "mlp.2.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * size.num_layers))
            elif weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the input of the head (B, T, C) for ids (B, T)."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.embed_tokens(ids) + self.wpe(positions)
        return self.ln_f(self.blocks(x))

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden(ids), self.embed_tokens.weight)


def get_batch(data: np.ndarray) -> tuple[Tensor, Tensor]:
    """Draw blocks at random, row by row, as nanoGPT does; return inputs and targets (B, T)."""
    starts = torch.randint(len(data) - BLOCK, (BATCH,)).tolist()
    blocks = np.stack([data[start : start + BLOCK + 1] for start in starts])
    ids = torch.from_numpy(blocks.astype(np.int64))
    return ids[:, :-1], ids[:, 1:]


def learning_rate(step: int, progress: float) -> float:
    """Return the rate of a warm-up by steps, then of a cosine down to MIN_LR; progress of the run's seconds, 0 to 1."""
    if step < WARMUP_STEPS:
        return PEAK_LR * (step + 1) / WARMUP_STEPS
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return MIN_LR + (PEAK_LR - MIN_LR) * cosine


def bits_per_byte(model: GPT, validation: TokenFile) -> float:
    """Return the loss over the whole file, in non-overlapping blocks, with the evaluation of lm.model.score."""
    losses, _ = score_tokens(model, validation, BLOCK, BLOCK, 64, torch.float32)
    bits = float(losses.sum(dtype="float64")) / math.log(2)
    return bits / validation.meta["utf8_bytes"]


def train(train_file: TokenFile, validation: TokenFile, seconds: float, eval_every_s: float, seed: int) -> None:
    """Train for a number of seconds and print the curve; evaluations stop the clock."""
    # Build the model and its optimizer. Weight decay applies to matrices only.
    torch.manual_seed(seed)
    model = GPT(train_file.vocab_size)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=BETAS)

    step = 0
    elapsed = 0.0
    next_eval = eval_every_s
    while elapsed < seconds:
        # Take a step.
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, elapsed / seconds)
        x, y = get_batch(train_file.ids)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        elapsed += time.perf_counter() - start

        # Print a point of the curve.
        if elapsed >= min(next_eval, seconds):
            next_eval += eval_every_s
            loss = bits_per_byte(model, validation)
            point = {"seconds": elapsed, "tokens": step * BATCH * BLOCK, "bits_per_byte": loss}
            print(json.dumps(point), flush=True)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train nanoGPT's CPU recipe on token files.")
    parser.add_argument("folder", type=Path, help="with train.bin and validation.bin")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--eval_every_s", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    train_file = open_tokens(args.folder / "train.bin")
    validation = open_tokens(args.folder / "validation.bin")
    train(train_file, validation, args.seconds, args.eval_every_s, args.seed)


if __name__ == "__main__":
    main()
