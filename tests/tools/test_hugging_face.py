"""The shape of a Gemma 3 in a config.json: read if lm.model computes the same, refused otherwise."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lm.core.errors import DataError
from lm.core.files import read_json
from lm.core.params import read_yaml
from lm.model.config import ModelParams
from support import ROOT
from support.model_cases import SHAPE, build
from tools.export_hf.hugging_face import read_config, read_pretrained, write_pretrained

# google/gemma-3-270m as published, in the form of transformers 4.
PUBLISHED = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0.dev0",
    "use_bidirectional_attention": False,
    "use_cache": True,
    "vocab_size": 262144,
}
EOT_ID = 299  # the last of the 300 entries of the models here


def write_config(folder: Path, **changes) -> Path:
    """Write the published configuration with changes; return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(PUBLISHED | changes))
    return path


# A configuration that was published.


def test_the_published_configuration_is_the_preset(tmp_path):
    preset = read_yaml(ROOT / "presets.yaml")["models"]["gemma3_270m"]

    config = read_config(write_config(tmp_path))

    assert config == ModelParams(**preset).config(PUBLISHED["vocab_size"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model_type", "gemma3", "model_type is 'gemma3'; it must be 'gemma3_text'"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; it must be None"),
        ("use_bidirectional_attention", True, "use_bidirectional_attention is True; it must be False"),
        ("hidden_activation", "silu", "hidden_activation is silu; it must be gelu_pytorch_tanh"),
        ("rope_scaling", {"factor": 8.0, "rope_type": "linear"}, "rope_parameters is .*linear"),
        ("layer_types", ["full_attention", *["sliding_attention"] * 17], "layer_types is .*; it must be "),
        ("query_pre_attn_scalar", 0, "query_pre_attn_scalar is 0; it must be above 0"),
        ("num_hidden_layers", "many", "not a valid shape of Gemma 3: "),
    ],
)
def test_an_unsupported_configuration_is_refused(tmp_path, name, value, said):
    path = write_config(tmp_path, **{name: value})

    with pytest.raises(DataError, match=said):
        read_config(path)


# A configuration that this project writes.


@pytest.mark.parametrize("every", [1, 3, 9])
def test_every_layer_pattern_survives_a_round_trip(tmp_path, every):
    model = build(300, full_attention_every=every)
    ids = torch.randint(300, (2, 40), generator=torch.Generator().manual_seed(0))

    write_pretrained(tmp_path, model, EOT_ID)
    read = read_pretrained(tmp_path)

    assert torch.equal(read(ids), model(ids))


def test_readers_of_every_version_find_bases_of_positions_and_full_layers(tmp_path):
    """Before transformers 5 they have other names."""
    write_pretrained(tmp_path, build(300, full_attention_every=3), EOT_ID)
    config = read_json(tmp_path / "config.json")
    of_full = SHAPE["rope_base_global"]
    of_sliding = SHAPE["rope_base_local"]
    assert of_full != of_sliding
    assert config["rope_theta"] == config["rope_parameters"]["full_attention"]["rope_theta"] == of_full
    assert config["rope_local_base_freq"] == of_sliding
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == of_sliding
    # Before 4.53, transformers knows full layers by one number alone, and without it takes every sixth for one.
    assert config["sliding_window_pattern"] == 3


# The head.


def add_head(folder: Path, change: float) -> torch.Tensor:
    """Write a model with a head: a copy of its embeddings, one value of which is changed; return the embeddings."""
    write_pretrained(folder, build(300), EOT_ID)
    path = folder / "model.safetensors"
    weights = load_file(path)
    embeddings = weights["model.embed_tokens.weight"]
    head = embeddings.clone()
    head[7, 3] += change
    save_file(weights | {"lm_head.weight": head}, path)
    return embeddings


def test_a_head_that_is_a_copy_of_the_embeddings_is_read(tmp_path):
    embeddings = add_head(tmp_path, change=0)

    model = read_pretrained(tmp_path)

    assert torch.equal(model.embed_tokens.weight, embeddings)


def test_a_head_of_its_own_is_refused(tmp_path):
    add_head(tmp_path, change=1)

    with pytest.raises(DataError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        read_pretrained(tmp_path)
