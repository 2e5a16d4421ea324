"""The shape of a Gemma 3 in a config.json: read if lm.model computes the same, refused otherwise."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lm.core.errors import DataError
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.model.config import ModelParams
from support import ROOT
from support.model_cases import SHAPE, build
from tools.export_hf.hugging_face import read_config, read_pretrained, write_pretrained

# google/gemma-3-270m as published, in the form of transformers 4.
PUBLISHED = read_json(ROOT / "tests" / "golden" / "gemma3_270m_config.json")
EOT_ID = 299  # the last of the 300 entries of the models here


# A configuration that was published.


def test_the_published_configuration_is_the_preset(tmp_path):
    preset = read_yaml(ROOT / "presets.yaml")["models"]["gemma3_270m"]

    write_json(tmp_path / "config.json", PUBLISHED)

    config = read_config(tmp_path / "config.json")

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
        ("num_hidden_layers", "many", "not a valid shape of Gemma 3: "),
    ],
)
def test_an_unsupported_configuration_is_refused(tmp_path, name, value, said):
    path = tmp_path / "config.json"
    write_json(path, PUBLISHED | {name: value})

    with pytest.raises(DataError, match=said):
        read_config(path)


# A configuration that this project writes.


def test_readers_of_every_version_find_bases_of_positions_and_full_layers(tmp_path):
    """Before transformers 5 they have other names."""
    model = build(300, full_attention_every=3)
    write_pretrained(tmp_path, model, EOT_ID)
    assert read_pretrained(tmp_path).config == model.config
    config = read_json(tmp_path / "config.json")
    of_full = SHAPE["rope_base_global"]
    of_sliding = SHAPE["rope_base_local"]
    assert of_full != of_sliding
    assert config["rope_theta"] == config["rope_parameters"]["full_attention"]["rope_theta"] == of_full
    assert config["rope_local_base_freq"] == of_sliding
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == of_sliding
    # Before 4.53, transformers knows full layers by one number alone, and without it takes every sixth for one.
    assert config["sliding_window_pattern"] == 3


def test_a_head_is_read_only_if_it_is_a_copy_of_the_embeddings(tmp_path):
    write_pretrained(tmp_path, build(300), EOT_ID)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    embeddings = weights["model.embed_tokens.weight"]
    head = embeddings.clone()

    save_file(weights | {"lm_head.weight": head}, path)
    assert torch.equal(read_pretrained(tmp_path).embed_tokens.weight, embeddings)

    head[7, 3] += 1
    save_file(weights | {"lm_head.weight": head}, path)
    with pytest.raises(DataError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        read_pretrained(tmp_path)
