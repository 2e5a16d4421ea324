"""The shape of a model, without torch: the stage fetch checks it before anything is computed."""

import dataclasses

from lm.core.params import require


@dataclasses.dataclass(frozen=True)
class ModelParams:
    """The shape of a model without its vocabulary; lengths are in tokens."""

    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    d_model: int
    d_ff: int
    sliding_window: int  # tokens that a sliding layer sees, the current one included
    full_attention_every: int  # layers n, 2n, … see the whole context instead
    rope_base_local: float  # of sliding layers
    rope_base_global: float  # of full layers
    query_pre_attn_scalar: int  # scores are divided by its square root; published as query_pre_attn_scalar
    norm_eps: float
    max_seq_len: int

    def __post_init__(self):
        for name, value in vars(self).items():
            require(0 < value < 2**31, name, value, "above 0, below 2^31")
        require(self.n_head % self.n_kv_head == 0, "n_head", self.n_head, f"a multiple of n_kv_head ({self.n_kv_head})")
        require(self.d_model % self.n_head == 0, "d_model", self.d_model, f"a multiple of n_head ({self.n_head})")
        require(self.head_dim % 2 == 0, "head_dim", self.head_dim, "an even number")

    def config(self, vocab_size: int) -> "ModelConfig":
        """Return the shape with the vocabulary size of a tokenizer."""
        return ModelConfig(**vars(self), vocab_size=vocab_size)


@dataclasses.dataclass(frozen=True)
class ModelConfig(ModelParams):
    """The complete shape of a model."""

    vocab_size: int

    def is_full(self, layer: int) -> bool:
        """Return True if the layer, counted from 0, sees the whole context."""
        return (layer + 1) % self.full_attention_every == 0

    def window(self, layer: int) -> int:
        """Return how many tokens the layer, counted from 0, sees at most, the current one included."""
        return self.max_seq_len if self.is_full(layer) else self.sliding_window

    def rope_base(self, layer: int) -> float:
        """Return the base of the rotary frequencies of the layer, counted from 0."""
        return self.rope_base_global if self.is_full(layer) else self.rope_base_local
