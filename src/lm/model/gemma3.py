"""Gemma 3 for text (arXiv 2503.19786): token ids in, logits or losses out; its size, work, published names.

    B batch   T tokens   S tokens with those cached   V vocabulary
    C d_model   F d_ff   H query heads   K key/value heads   D head_dim

Modules carry the names of the published checkpoints, so that converting is a prefix. What takes most of
a training step on a CPU, normalization, attention and cross-entropy, is in lm.kernels.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.model.kernels import CrossEntropyFunction, RMSNormFunction, attend

MAX_LOGITS = (
    512 * 262_144
)  # at a time in the loss: 256 MiB in bfloat16; for each such part the head's gradient is added


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """The shape of a model but for its vocabulary; lengths are in tokens."""

    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    d_model: int
    d_ff: int
    window: int  # what a sliding layer sees, the present token included
    full_attention_every: int  # layers n, 2n, … see the whole context instead
    rope_base_local: float  # of sliding layers
    rope_base_global: float  # of full layers
    query_scale: int  # scores are divided by its square root; "query_pre_attn_scalar"
    norm_eps: float
    max_seq_len: int

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}, needed: above 0")
        for name, unit, of in (("n_head", self.n_kv_head, "n_kv_head"), ("d_model", self.n_head, "n_head")):
            if getattr(self, name) % unit:
                raise ValueError(f"{name} is {getattr(self, name)}, needed: a multiple of {of} ({unit})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, needed: an even number")

    def config(self, vocab_size: int) -> "ModelConfig":
        """Complete the shape with a tokenizer's vocabulary."""
        return ModelConfig(**vars(self), vocab_size=vocab_size)


@dataclasses.dataclass(frozen=True)
class ModelConfig(ModelParams):
    """The whole shape of a model."""

    vocab_size: int

    def is_full(self, layer: int) -> bool:
        """Whether a layer, counted from 0, sees the whole context."""
        return (layer + 1) % self.full_attention_every == 0


class RMSNorm(nn.Module):
    """Normalization over the last axis; the weight is the gain's distance from 1."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return RMSNormFunction.apply(x, self.weight, self.eps)


def rotary_table(start: int, end: int, head_dim: int, base: float, device) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (T, 1, D) of the positions from start to end (RoPE, arXiv 2104.09864)."""
    frequency = 1 / base ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angle = torch.arange(start, end, device=device).float()[:, None, None] * frequency  # (T, 1, D/2)
    return torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair x[i], x[i + D/2] of (B, T, heads, D) by its position's angle."""
    cos, signed_sin = table
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


class Linear(nn.Linear):
    """A matrix without bias, zero until `init_weights` or `load_state_dict`."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self):
        nn.init.zeros_(self.weight)  # nn.Linear would draw from the global generator


class Attention(nn.Module):
    """Grouped-query attention with normalized queries and keys; (B, T, C) → (B, T, C)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        C, H, K, D = config.d_model, config.n_head, config.n_kv_head, config.head_dim
        self.layer, self.head_dim, self.scale = layer, D, config.query_scale**-0.5
        self.window = config.max_seq_len if config.is_full(layer) else config.window
        self.q_proj, self.k_proj, self.v_proj = Linear(C, H * D), Linear(C, K * D), Linear(C, K * D)
        self.o_proj = Linear(H * D, C)
        self.q_norm, self.k_norm = RMSNorm(D, config.norm_eps), RMSNorm(D, config.norm_eps)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], cache) -> Tensor:
        """x (B, T, C) → (B, T, C); `table` turns its positions, `cache` is what it continues, or None."""
        B, T, _ = x.shape
        heads = (B, T, -1, self.head_dim)
        q, k, v = self.q_proj(x).view(heads), self.k_proj(x).view(heads), self.v_proj(x).view(heads)
        q, k = rotate(self.q_norm(q), table).to(v.dtype), rotate(self.k_norm(k), table).to(v.dtype)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D), (B, K, T, D) twice
        if cache is not None:
            k, v = cache.extend(self.layer, k, v, self.window)  # (B, K, S, D)
        return self.o_proj(attend(q, k, v, self.scale, self.window).transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """GeGLU (arXiv 2002.05202): (B, T, C) → (B, T, F) → (B, T, C)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj, self.up_proj = (Linear(config.d_model, config.d_ff) for _ in range(2))
        self.down_proj = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Block(nn.Module):
    """Attention, then MLP, each between two norms and added to x (B, T, C)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.pre_feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = MLP(config)
        self.post_feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.rope_base = config.rope_base_global if config.is_full(layer) else config.rope_base_local

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], cache) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), table, cache))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma3Model(nn.Module):
    """The decoder; its head is the embedding (V, C), used twice and kept once."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        zeros = torch.zeros(config.vocab_size, config.d_model)
        self.embed_tokens = nn.Embedding.from_pretrained(zeros, freeze=False)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = RMSNorm(config.d_model, config.norm_eps)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.norm.weight.device

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Draw matrices from N(0, 1 / fan_in) in model order; the generator is on their device.

        What a block adds is scaled by 1 / sqrt(2 n_layer) as in GPT-2, but in the gain of its post-norm,
        which would undo it in a matrix. The embedding's std is a quarter of a matrix's: the first logits
        are small and the first loss is about ln V.
        """
        post_gain = (2 * self.config.n_layer) ** -0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 1:
                weight.fill_(post_gain - 1 if ".post_" in name else 0)
            else:
                std = weight.shape[1] ** -0.5
                weight.normal_(0, std / 4 if "embed" in name else std, generator=generator)

    def hidden(self, ids: Tensor, cache=None) -> Tensor:
        """ids (B, T) int64 → what the head reads (B, T, C); they continue a cache (lm.sample.KVCache).

        Raises ValueError past max_seq_len.
        """
        start = 0 if cache is None else cache.num_tokens
        end = start + ids.shape[1]
        if end > self.config.max_seq_len:
            raise ValueError(f"{end} tokens, needed: at most max_seq_len ({self.config.max_seq_len})")
        x = self.embed_tokens(ids)  # (B, T, C)
        x = x * torch.tensor(self.config.d_model**0.5, dtype=x.dtype)  # the root rounded as published
        bases = {layer.rope_base for layer in self.layers}
        tables = {base: rotary_table(start, end, self.config.head_dim, base, x.device) for base in bases}
        for layer in self.layers:
            x = layer(x, tables[layer.rope_base], cache)
        return self.norm(x)

    def forward(self, ids: Tensor, cache=None) -> Tensor:
        """ids (B, T) int64 → logits (B, T, V) of the next tokens."""
        return F.linear(self.hidden(ids, cache), self.embed_tokens.weight)

    def loss(self, ids: Tensor, targets: Tensor, max_logits: int = MAX_LOGITS) -> Tensor:
        """Mean nats a token, float32, of targets (B, T) after ids (B, T), both int64.

        At most `max_logits` logits exist at a time, but a row of V at least.
        """
        h = self.hidden(ids).flatten(0, 1).float()
        rows = max(1, max_logits // self.config.vocab_size)
        return CrossEntropyFunction.apply(h, self.embed_tokens.weight, targets.flatten(), rows)

    def token_losses(self, ids: Tensor, targets: Tensor, logits_chunk: int = 512) -> Tensor:
        """The nats (B, T) float32 of each of the targets (B, T)."""
        h, targets = self.hidden(ids).flatten(0, 1), targets.flatten()
        losses = torch.empty(targets.shape, device=h.device)
        for start in range(0, len(h), logits_chunk):
            part = slice(start, start + logits_chunk)
            logits = F.linear(h[part], self.embed_tokens.weight).float()
            losses[part] = F.cross_entropy(logits, targets[part], reduction="none")
        return losses.view(ids.shape)

    def compile(self, **options) -> None:
        """Compile the blocks: one graph for all of a kind, so the start is short whatever the depth."""
        for layer in self.layers:
            layer.compile(**options)


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Trainable numbers by part and in "total"; the head is the embedding and counts once."""
    C, L, D = config.d_model, config.n_layer, config.head_dim
    parts = {
        "embedding": config.vocab_size * C,
        "attention": L * 2 * C * D * (config.n_head + config.n_kv_head),
        "mlp": L * 3 * C * config.d_ff,
        "norms": L * (4 * C + 2 * D) + C,
    }
    return parts | {"total": sum(parts.values())}


def flops_per_token(config: ModelConfig, seq_len: int) -> dict[str, float]:
    """Training FLOP a token by part and in "total": matrix products, the backward pass twice the forward.

    As in PaLM (arXiv 2204.02311, appendix B), 6 a weight and 12 H D a score, but only for the scores that
    the mask lets through: on average w - w (w - 1) / 2T a token for a window of w ≤ T tokens.
    """
    windows = [seq_len if config.is_full(i) else min(config.window, seq_len) for i in range(config.n_layer)]
    context = sum(w - w * (w - 1) / (2 * seq_len) for w in windows)
    weights = count_parameters(config)
    parts = {
        "attention": 6.0 * weights["attention"],
        "scores": 12 * config.n_head * config.head_dim * context,
        "mlp": 6.0 * weights["mlp"],
        "head": 6.0 * weights["embedding"],
    }
    return parts | {"total": sum(parts.values())}


def to_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict with the names of transformers' Gemma3ForCausalLM (its tied lm_head left out)."""
    return {f"model.{name}": weight for name, weight in state.items()}


def from_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse, in float32. Raises ValueError if the head is not tied to the embedding."""
    state = dict(state)
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["model.embed_tokens.weight"]):
        raise ValueError("lm_head.weight differs from model.embed_tokens.weight, needed: tied embeddings")
    return {name.removeprefix("model."): weight.float() for name, weight in state.items()}


def hugging_face_config(config: ModelConfig) -> dict:
    """Arguments of transformers' Gemma3TextConfig; whoever exports adds the tokenizer's special ids."""
    bases = {"sliding_attention": config.rope_base_local, "full_attention": config.rope_base_global}
    kinds = ["full_attention" if config.is_full(i) else "sliding_attention" for i in range(config.n_layer)]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "head_dim": config.head_dim,
        "sliding_window": config.window,
        "layer_types": kinds,
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": base} for k, base in bases.items()},
        "query_pre_attn_scalar": config.query_scale,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_seq_len,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
