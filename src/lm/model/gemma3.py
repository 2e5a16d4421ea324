"""The Gemma 3 decoder for text (arXiv 2503.19786): token ids in, logits or losses out; its size and its FLOP.

    B batch   T tokens   S tokens with those cached   V vocabulary
    C d_model   F d_ff   H query heads   K key/value heads   D head_dim

Modules have the names of the published checkpoints, so that a conversion only changes a prefix. A model computes in
torch's own arithmetic (lm.model.kernels) unless it is made with numerics="exact" (lm.exact.functions).
"""

import functools
import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from lm.core.numerics import Numerics
from lm.exact import functions as exact
from lm.model import kernels
from lm.model.config import ModelConfig
from lm.model.kernels import block_mask, document_numbers
from lm.model.machine import is_gpu
from lm.model.sampled_softmax import sample_vocabulary

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

RECOMPILE_LIMIT = 64  # graphs of one function; the default of torch is 8
# With its defaults, torch's compiler writes terms of a norm's gradient to memory in float32 and reads them again.
GPU_COMPILER_OPTIONS = {"realize_reads_threshold": 12, "realize_opcount_threshold": 100}
MAX_LOGITS = 512 * 262_144  # logits in memory at a time in the loss: 256 MiB in bfloat16; a GPU may hold more


class Layer(nn.Module):
    """A module that computes with the functions of `math`; its model sets `numerics`."""

    numerics: Numerics = "fast"

    @property
    def math(self) -> ModuleType:
        """Return the module of functions in the numerics of the model."""
        return exact if self.numerics == "exact" else kernels


class RMSNorm(Layer):
    """Normalize over the last axis; the gain is 1 + weight."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.math.rms_norm(x, self.weight, self.eps)


def rotary_table(num_positions: int, head_dim: int, base: float, device) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines (T, 1, D) of the first T positions (RoPE, arXiv 2104.09864)."""
    frequency = torch.tensor([base ** (-i / head_dim) for i in range(0, head_dim, 2)])
    angle = (torch.arange(num_positions)[:, None, None] * frequency).double()  # (T, 1, D/2), rounded as published
    # The last bit of a float64 cosine differs between processors. Rounding to float32 hides it, but for one angle in a
    # billion it might not.
    cos = angle.cos().float().to(device)
    sin = angle.sin().float().to(device)
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair x[i], x[i + D/2] of x (B, T, heads, D) by the angle of its position."""
    cos, signed_sin = table
    return x * cos + x.roll(x.shape[-1] // 2, -1) * signed_sin


class Linear(Layer, nn.Linear):
    """A linear layer without bias; its weight is zero until `init_weights` or `load_state_dict`."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self):
        nn.init.zeros_(self.weight)  # nn.Linear would draw from the global generator

    def forward(self, input: Tensor) -> Tensor:
        return self.math.linear(input, self.weight)


class Attention(Layer):
    """Grouped-query attention with normalized queries and keys: (B, T, C) → (B, T, C)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        C = config.d_model
        H = config.n_head
        K = config.n_kv_head
        D = config.head_dim
        self.layer = layer
        self.head_dim = D
        self.scale = config.query_pre_attn_scalar**-0.5
        self.window = config.window(layer)
        self.max_seq_len = config.max_seq_len
        self.q_proj = Linear(C, H * D)
        self.k_proj = Linear(C, K * D)
        self.v_proj = Linear(C, K * D)
        self.o_proj = Linear(H * D, C)
        self.q_norm = RMSNorm(D, config.norm_eps)
        self.k_norm = RMSNorm(D, config.norm_eps)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], cache, mask: "Tensor | BlockMask | None") -> Tensor:
        """Attend from x (B, T, C) to itself and to the cached past, if any; `table` is its `rotary_table`.

        `mask` is one of `Gemma3Model.attention_masks`.
        """
        # Project to heads.
        B, T, _ = x.shape
        heads = (B, T, -1, self.head_dim)
        q = self.q_proj(x).view(heads)  # (B, T, H, D)
        k = self.k_proj(x).view(heads)  # (B, T, K, D)
        v = self.v_proj(x).view(heads)  # (B, T, K, D)

        # Normalize queries and keys, and rotate them by position.
        q = rotate(self.q_norm(q), table).to(v.dtype)
        k = rotate(self.k_norm(k), table).to(v.dtype)

        # Attend, with the cached past in front.
        q = q.transpose(1, 2)  # (B, H, T, D)
        k = k.transpose(1, 2)  # (B, K, T, D)
        v = v.transpose(1, 2)  # (B, K, T, D)
        if cache is not None:
            cached_window = self.math.cached_window(self.window, self.max_seq_len)
            k, v = cache.extend(self.layer, k, v, cached_window)  # (B, K, S, D)
        heads_out = self.math.attend(q, k, v, self.scale, self.window, mask)  # (B, H, T, D)
        return self.o_proj(heads_out.transpose(1, 2).reshape(B, T, -1))


class MLP(Layer):
    """GeGLU (arXiv 2002.05202): (B, T, C) → (B, T, F) → (B, T, C)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = Linear(config.d_model, config.d_ff)
        self.up_proj = Linear(config.d_model, config.d_ff)
        self.down_proj = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.math.gated_gelu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    """Attention, then the MLP, each between two norms and added to x (B, T, C)."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.pre_feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = MLP(config)
        self.post_feedforward_layernorm = RMSNorm(config.d_model, config.norm_eps)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor], cache, mask: "Tensor | BlockMask | None") -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), table, cache, mask)
        x = x + self.post_attention_layernorm(attended)
        fed_forward = self.mlp(self.pre_feedforward_layernorm(x))
        return x + self.post_feedforward_layernorm(fed_forward)


class Gemma3Model(Layer):
    """The decoder; its output head is its embedding (V, C), stored once.

    `numerics` is "fast", torch's own arithmetic, in which its logits are those of transformers within float32's
    rounding, or "exact": float32, with the same bits on every processor and on NVIDIA GPUs (lm.exact).
    `sampling_weights` (V,) int64 are the odds of each entry in a sampled softmax (lm.train.step.sampling_weights).
    `document_start_id` begins a document, beyond which attention does not look back (lm.model.kernels); None for none.
    """

    sampling_weights: Tensor

    def __init__(self, config: ModelConfig, numerics: Numerics = "fast"):
        super().__init__()
        self.config = config
        self.document_start_id: int | None = None
        self.is_compiled = False
        self.max_logits: int | None = None  # in memory at a time in the loss, which asks the device once
        # The rotary table of each base, as long as the longest text so far.
        self.kept_tables: dict[float, tuple[Tensor, Tensor]] = {}
        # The block mask of each window, shape of ids and device, if documents do not matter.
        self.kept_masks: dict[tuple, BlockMask] = {}
        self.register_buffer("sampling_weights", torch.ones(config.vocab_size, dtype=torch.int64), persistent=False)
        zeros = torch.zeros(config.vocab_size, config.d_model)
        self.embed_tokens = nn.Embedding.from_pretrained(zeros, freeze=False)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        for module in self.modules():
            if isinstance(module, Layer):
                module.numerics = numerics
        self.cross_entropy = self.math.cross_entropy

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.norm.weight.device

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Draw matrices of variance 1 / fan_in in model order; the generator is on the CPU.

        Like GPT-2, scale the output of a block by 1 / sqrt(2 n_layer), here in the gain of its post-norm. The
        embedding has a quarter of the standard deviation, so that the first loss is about ln V. NumPy draws the
        numbers, because those of torch depend on the processor.
        """
        seed = int(torch.randint(2**62, (), generator=generator))
        rng = np.random.default_rng(seed)
        post_gain = 1 / math.sqrt(2 * self.config.n_layer)
        for name, weight in self.named_parameters():
            if weight.ndim == 1:
                gain = post_gain if ".post_" in name else 1
                weight.fill_(gain - 1)
                continue
            fan_in = weight.shape[1]
            std = 1 / math.sqrt(fan_in)
            if "embed" in name:
                std /= 4
            weight.copy_(torch.from_numpy(rng.standard_normal(weight.shape))).mul_(std)

    def hidden(self, ids: Tensor, cache=None) -> Tensor:
        """Return the input of the head (B, T, C) for ids (B, T) int64, which continue the past in `cache`.

        `cache` is a lm.evaluate.generation.KVCache or None. Raise ValueError past max_seq_len, if ids that continue
        a past begin another document, or if exact numerics are not given float32 on a CPU or an NVIDIA GPU.
        """
        self.math.check_weights(self.norm.weight)
        start = 0 if cache is None else cache.num_tokens
        end = start + ids.shape[1]
        if end > self.config.max_seq_len:
            raise ValueError(f"{end} tokens; there must be at most max_seq_len ({self.config.max_seq_len})")
        if cache is None:
            masks = self.attention_masks(ids)
        else:
            # A cache holds one document, so no mask is needed. Only its first token may begin a document.
            num_first = 1 if start == 0 else 0
            self.reject_second_document(ids[:, num_first:])
            masks = {}

        x = self.math.embedding(ids, self.embed_tokens.weight, self.config.d_model**0.5)  # (B, T, C)
        tables = self.rotary_tables(start, end, x.device)
        for number, layer in enumerate(self.layers):
            base = self.config.rope_base(number)
            x = layer(x, tables[base], cache, masks.get(self.config.window(number)))
        return self.norm(x)

    def rotary_tables(self, start: int, end: int, device: torch.device) -> dict[float, tuple[Tensor, Tensor]]:
        """Return for each base the cosines and signed sines (T, 1, D) of the positions from start to end.

        They are computed once, and again only for a longer text, because a GPU waits for each copy.
        """
        tables = {}
        for base in (self.config.rope_base_local, self.config.rope_base_global):
            kept = self.kept_tables.get(base)
            if kept is None or len(kept[0]) < end or kept[0].device != device:
                power_of_two = 2 ** (end - 1).bit_length()  # a text that grows needs few tables
                length = min(power_of_two, self.config.max_seq_len)
                with torch.inference_mode(False):  # a training step may use it later
                    kept = rotary_table(length, self.config.head_dim, base, device)
                self.kept_tables[base] = kept
            cos, signed_sin = kept
            tables[base] = cos[start:end], signed_sin[start:end]
        return tables

    def reject_second_document(self, ids: Tensor) -> None:
        """Raise ValueError if ids (B, T), which follow others in a cache, begin a document."""
        if self.document_start_id is not None and (ids == self.document_start_id).any():
            raise ValueError("the cache holds the end of a document; each document must have a cache of its own")

    def attention_masks(self, ids: Tensor) -> "Mapping[int, Tensor | BlockMask]":
        """Return the mask of each window length for ids (B, T), or {} where `attend` makes it from the window alone."""
        windows = {self.config.window(layer) for layer in range(self.config.n_layer)}
        if self.is_compiled and kernels.takes_flex_attention(self.norm.weight, self.config.head_dim, ids.shape[1]):
            return self.block_masks(ids, windows)
        if self.document_start_id is None:
            return {}
        documents = document_numbers(ids, self.document_start_id)
        if ids.device.type == "cpu":  # a GPU would wait for the answer
            has_one_document = torch.equal(documents[:, 0], documents[:, -1])
            if has_one_document:
                return {}
        heads = self.config.n_head
        return {window: self.math.mask(documents, window, heads, self.norm.weight) for window in windows}

    def block_masks(self, ids: Tensor, windows: set[int]) -> "dict[int, BlockMask]":
        """Return the masks of FlexAttention for ids (B, T), but none for a window that sees all of one document.

        Without documents they are made once for each shape of ids.
        """
        if self.document_start_id is not None:
            documents = document_numbers(ids, self.document_start_id)
            return {window: block_mask(documents, window) for window in windows}
        masks = {}
        for window in windows:
            if window >= ids.shape[1]:
                continue
            key = (window, ids.shape, ids.device)
            if key not in self.kept_masks:
                with torch.inference_mode(False):  # a training step may use it later
                    self.kept_masks[key] = block_mask(torch.zeros_like(ids), window)
            masks[window] = self.kept_masks[key]
        return masks

    def head(self, h: Tensor) -> Tensor:
        """Return the logits (…, V) of what `hidden` returns (…, C)."""
        return self.math.linear(h, self.embed_tokens.weight)

    def forward(self, ids: Tensor, cache=None) -> Tensor:
        """Return the logits (B, T, V) of the tokens after ids (B, T) int64."""
        return self.head(self.hidden(ids, cache))

    def loss(self, ids: Tensor, targets: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return the mean nats, float32, of targets (B, T) after ids (B, T).

        At most `max_logits` logits are in memory at once: MAX_LOGITS, or more if the memory of a GPU was free in the
        first loss.

        With `draws` (K,) they are estimated from about K entries of the vocabulary, drawn in proportion to
        `sampling_weights` (`sample_vocabulary`); a K of at least the vocabulary is the full loss.
        """
        h = self.hidden(ids).flatten(0, 1).float()
        targets = targets.flatten()
        entries = self.embed_tokens.weight
        rows = self.loss_rows(h)
        log_factors = None
        if draws is not None and len(draws) < self.config.vocab_size:
            chosen, targets, log_factors = sample_vocabulary(targets, self.sampling_weights, draws)
            # torch adds the gradients of an entry that was drawn several times, on a GPU in any order. They are equal,
            # because equal entries have equal factors, and the order of equal numbers changes no sum. So a factor must
            # depend on its entry alone, not on the draw. With entries[chosen], threads of a CPU would use any order.
            entries = entries.index_select(0, chosen)
        return self.cross_entropy(h, entries, targets, rows, log_factors)

    def loss_rows(self, h: Tensor) -> int:
        """Return the number of rows of h (N, C) whose logits the loss keeps in memory at a time."""
        is_fast_on_gpu = self.numerics == "fast" and is_gpu(h.device)
        if self.max_logits is None:
            self.max_logits = MAX_LOGITS
            if is_fast_on_gpu:
                free = kernels.most_logits(h.device, kernels.compute_dtype(h), self.is_compiled)
                self.max_logits = max(MAX_LOGITS, free)
        most_rows = max(1, self.max_logits // self.config.vocab_size)
        if not is_fast_on_gpu:
            return most_rows
        return rows_of_equal_chunks(len(h), most_rows)

    def compile(self, **options) -> None:
        """Compile each block, the last norm, and the softmax of the loss.

        Equal blocks share one graph, so that a deep model starts as fast as a shallow one. Raise ValueError in exact
        numerics, because a compiler joins operations, and so changes bits.
        """
        if self.numerics == "exact":
            raise ValueError("numerics is exact; to compile a model, it must be fast")
        # Training, validation, and the last batch of each get graphs of their own (dynamic=False): one for all shapes
        # would slow training down. Past the limit, a block would run without its graph.
        torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
        self.is_compiled = True
        options["dynamic"] = False
        if is_gpu(self.device) and "backend" not in options:
            options["options"] = GPU_COMPILER_OPTIONS
        for layer in self.layers:
            layer.compile(**options)
        self.norm.compile(**options)
        softmax_less_targets = torch.compile(kernels.fused_nats_and_gradient_, **options)
        self.cross_entropy = functools.partial(kernels.cross_entropy, softmax_less_targets=softmax_less_targets)


def rows_of_equal_chunks(num_rows: int, most_rows: int) -> int:
    """Return the size of the fewest equal chunks of at most `most_rows` rows, so that one compiled graph serves all.

    If that takes twice as many chunks as unequal ones or more, the last chunk is smaller.
    """
    fewest_chunks = -(-num_rows // most_rows)
    for num_chunks in range(fewest_chunks, 2 * fewest_chunks):
        if num_rows % num_chunks == 0:
            return num_rows // num_chunks
    return -(-num_rows // fewest_chunks)


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Return the number of parameters by component and in "total"; the head is the embedding and counts once."""
    C = config.d_model
    L = config.n_layer
    D = config.head_dim
    attention = L * 2 * C * D * (config.n_head + config.n_kv_head)
    embedding = config.vocab_size * C
    mlp = L * 3 * C * config.d_ff
    norms = L * (4 * C + 2 * D) + C
    counts = {"embedding": embedding, "attention": attention, "mlp": mlp, "norms": norms}
    return counts | {"total": sum(counts.values())}


def flops_per_token(config: ModelConfig, seq_len: int, sampled_vocab_size: int | None = None) -> dict[str, float]:
    """Return the training FLOP per token by component and in "total": matrix products, forward and backward.

    As in PaLM (arXiv 2204.02311, appendix B), 6 per weight and 12 H D per score, but only for the scores that the
    mask lets through: on average w - w (w - 1) / 2T per token for a window of w ≤ T tokens, all of one document. The
    head is that of `sampled_vocab_size` entries, if fewer than all.
    """
    # Sum over the layers how many tokens the mask lets a token see on average.
    windows = []
    for layer in range(config.n_layer):
        windows.append(seq_len if config.is_full(layer) else min(config.sliding_window, seq_len))
    context = sum(w - w * (w - 1) / (2 * seq_len) for w in windows)

    weights = count_parameters(config)
    head_entries = min(sampled_vocab_size or config.vocab_size, config.vocab_size)
    flops: dict[str, float] = {
        "attention": 6.0 * weights["attention"],
        "scores": 12 * config.n_head * config.head_dim * context,
        "mlp": 6.0 * weights["mlp"],
        "head": 6.0 * head_entries * config.d_model,
    }
    return flops | {"total": sum(flops.values())}
