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
from support.model_cases import build
from tools.common.hugging_face import read_config, read_pretrained, write_pretrained

# google/gemma-3-270m as published, in the form of transformers 4.
PUBLISHED = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640,
    "initializer_range": 0.02, "intermediate_size": 2048,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3,
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
    "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": 512, "torch_dtype": "bfloat16", "transformers_version": "4.55.0.dev0",
    "use_bidirectional_attention": False, "use_cache": True, "vocab_size": 262144,
}  # fmt: skip


def write_config(folder: Path, **changes) -> Path:
    (folder / "config.json").write_text(json.dumps(PUBLISHED | changes))
    return folder / "config.json"


def test_the_published_configuration_is_the_preset(tmp_path):
    preset = read_yaml(ROOT / "presets.yaml")["models"]["gemma3_270m"]
    assert read_config(write_config(tmp_path)) == ModelParams(**preset).config(262144)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("model_type", "gemma3", "model_type is 'gemma3'; it must be 'gemma3_text'"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0; it must be None"),
        ("use_bidirectional_attention", True, "use_bidirectional_attention is True; it must be False"),
        ("attention_bias", True, "attention_bias is True; it must be False"),
        ("hidden_activation", "silu", "hidden_activation is silu; it must be gelu_pytorch_tanh"),
        ("rope_scaling", {"factor": 8.0, "rope_type": "linear"}, "rope_parameters is .*linear"),
        ("layer_types", ["full_attention", *["sliding_attention"] * 17], "layer_types is .*; it must be "),
        ("query_pre_attn_scalar", 0, "query_pre_attn_scalar is 0; it must be above 0"),
        ("hidden_size", 642, "not a valid shape of Gemma 3: "),
        ("num_hidden_layers", "many", "num_hidden_layers is many; it must be from 1 to 10000"),
    ],
)
def test_an_unsupported_configuration_is_refused(tmp_path, name, value, sentence):
    with pytest.raises(DataError, match=sentence):
        read_config(write_config(tmp_path, **{name: value}))


@pytest.mark.parametrize("every", [1, 3, 9])
def test_every_layer_pattern_survives_a_round_trip(tmp_path, every):
    model = build(300, full_attention_every=every)
    ids = torch.randint(300, (2, 40), generator=torch.Generator().manual_seed(0))
    write_pretrained(tmp_path, model, eot_id=299)
    assert torch.equal(read_pretrained(tmp_path)(ids), model(ids))


def test_a_written_configuration_says_what_readers_of_every_version_need(tmp_path):
    model = build(300, full_attention_every=3)
    write_pretrained(tmp_path, model, eot_id=299)
    config, generation = (read_json(tmp_path / name) for name in ("config.json", "generation_config.json"))
    ours = model.config
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (ours.rope_base_global, ours.rope_base_local)
    of_layers = {name: each["rope_theta"] for name, each in config["rope_parameters"].items()}
    assert of_layers == {"full_attention": ours.rope_base_global, "sliding_attention": ours.rope_base_local}
    assert ours.rope_base_global != ours.rope_base_local
    sliding = "sliding_attention"
    assert config["layer_types"] == [sliding, sliding, "full_attention", sliding]
    # Before 4.53, transformers knows the layers by this number alone, and without it takes every sixth as full.
    slides = [bool((layer + 1) % config["sliding_window_pattern"]) for layer in range(4)]
    assert slides == [each == sliding for each in config["layer_types"]]
    assert config["tie_word_embeddings"] is True and config["dtype"] == "float32"
    # A padding id in config.json would stop the gradient of that embedding.
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (299, 299, None)
    assert {generation[f"{name}_token_id"] for name in ("bos", "eos", "pad")} == {299}


def test_a_head_of_its_own_is_refused_and_a_copy_of_the_embeddings_read(tmp_path):
    model = build(300)
    write_pretrained(tmp_path, model, eot_id=299)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    head = weights["model.embed_tokens.weight"].clone()
    save_file(weights | {"lm_head.weight": head}, path)
    assert torch.equal(read_pretrained(tmp_path).embed_tokens.weight, head)
    head[7, 3] += 1
    save_file(weights | {"lm_head.weight": head}, path)
    with pytest.raises(DataError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        read_pretrained(tmp_path)
