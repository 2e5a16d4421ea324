"""nanoGPT's model, written again, for speed/gpu.py to compare with.

LayerNorm, learned positions, GELU, tied head.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Size(NamedTuple):
    """The shape of a GPT; `block` is the most tokens that it sees."""

    num_layers: int
    num_heads: int
    width: int
    block: int


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

    def __init__(self, vocab_size: int, size: Size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, size.width)
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

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.wte(ids) + self.wpe(positions)
        x = self.ln_f(self.blocks(x))
        return F.linear(x, self.wte.weight)
