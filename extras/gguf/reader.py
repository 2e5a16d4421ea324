"""Read a GGUF file back as llama.cpp reads it, with transformers' model; needs requirements/gguf.txt."""

from pathlib import Path

import gguf
from transformers import Gemma3TextConfig

from tools.export_hf.hugging_face import open_with_transformers


def open_gguf(path: Path):
    """Return the Gemma3ForCausalLM of a file, in float32."""
    return open_with_transformers(path.parent, gguf_file=path.name, config=read_config(path))


def read_config(path: Path) -> Gemma3TextConfig:
    """Return the shape of a file as llama.cpp reads it (src/models/gemma3.cpp)."""
    entries = {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    shape = {name.removeprefix("gemma3."): value for name, value in entries.items() if name.startswith("gemma3.")}
    n_layer = shape["block_count"]
    slides = shape.get("attention.sliding_window_pattern", [False] * n_layer)
    base = shape["rope.freq_base"]
    return Gemma3TextConfig(
        vocab_size=len(entries["tokenizer.ggml.tokens"]),
        hidden_size=shape["embedding_length"],
        intermediate_size=shape["feed_forward_length"],
        num_hidden_layers=n_layer,
        num_attention_heads=shape["attention.head_count"],
        num_key_value_heads=shape["attention.head_count_kv"],
        head_dim=shape["attention.key_length"],
        query_pre_attn_scalar=shape["attention.key_length"],
        rms_norm_eps=shape["attention.layer_norm_rms_epsilon"],
        max_position_embeddings=shape["context_length"],
        sliding_window=shape.get("attention.sliding_window", shape["context_length"]),
        layer_types=["sliding_attention" if slide else "full_attention" for slide in slides],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": base},
            "sliding_attention": {"rope_type": "default", "rope_theta": shape.get("rope.freq_base_swa", base)},
        },
    )
