"""A Gemma 3 in the files of transformers: config.json and safetensors, written and read.

What is read has to compute exactly what lm.model computes; pickled weights are never opened.
"""

from pathlib import Path

import safetensors.torch
from torch import Tensor

from lm.core.errors import DataError, IntegrityError
from lm.core.files import atomic_write, read_json, write_json
from lm.model.gemma3 import Gemma3Model, ModelConfig, from_hugging_face, hugging_face_config, to_hugging_face

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
# What of a published configuration has but one value, or one form, in lm.model.
FIXED = (
    "hidden_activation", "attention_bias", "final_logit_softcapping", "attn_logit_softcapping",
    "use_bidirectional_attention", "tie_word_embeddings", "layer_types", "rope_parameters",
    "query_pre_attn_scalar",
)  # fmt: skip


def write_pretrained(folder: Path, model: Gemma3Model, eot_id: int) -> None:
    """Write weights (float32), config.json and generation_config.json; texts begin and end with `eot_id`."""
    # With more than one entry of metadata the bytes would differ from run to run.
    content = safetensors.torch.save(to_hugging_face(model.state_dict()), metadata={"format": "pt"})
    with atomic_write(folder / WEIGHTS) as file:
        file.write(content)
    ends = {"bos_token_id": eot_id, "eos_token_id": eot_id}
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "float32",
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        **hugging_face_config(model.config),
        "rope_theta": model.config.rope_base_global,  # the names before transformers 5
        "rope_local_base_freq": model.config.rope_base_local,
    }
    write_json(folder / CONFIG, config | ends)
    # Padding is named for batches of texts alone: in config.json it would cut the gradient of its embedding.
    write_json(folder / GENERATION_CONFIG, ends | {"pad_token_id": eot_id})


def read_pretrained(folder: Path) -> Gemma3Model:
    """Return the text-only Gemma 3 of a folder, in float32.

    Raises DataError if it is another kind of model, IntegrityError if a file is damaged or missing.
    """
    model = Gemma3Model(read_config(folder / CONFIG))
    try:
        model.load_state_dict(read_weights(folder))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{folder}: its weights do not fit {CONFIG}: {reason}") from None
    return model


def read_config(path: Path) -> ModelConfig:
    """The shape in a config.json; DataError for anything that lm.model does not compute."""
    from transformers import Gemma3TextConfig

    found = read_json(path)
    if found.get("model_type") != "gemma3_text":
        raise DataError(f"{path}: model_type is {found.get('model_type')!r}, needed: 'gemma3_text'")
    try:
        theirs = Gemma3TextConfig(**found)
        ours = shape_of(theirs)
    except Exception as error:  # transformers raises many kinds for what it cannot read
        raise DataError(f"{path}: no Gemma 3 can have this shape: {' '.join(str(error).split())}") from None
    wanted = Gemma3TextConfig(**hugging_face_config(ours))
    for name in FIXED:
        if (getattr(theirs, name) or None) != (getattr(wanted, name) or None):
            raise DataError(f"{path}: {name} is {getattr(theirs, name)}, needed: {getattr(wanted, name)}")
    return ours


def shape_of(theirs) -> ModelConfig:
    """The sizes of a Gemma3TextConfig under our names; ValueError if they cannot be."""
    rope, kinds = theirs.rope_parameters, [*theirs.layer_types, "full_attention"]
    return ModelConfig(
        n_layer=theirs.num_hidden_layers,
        n_head=theirs.num_attention_heads,
        n_kv_head=theirs.num_key_value_heads,
        head_dim=theirs.head_dim,
        d_model=theirs.hidden_size,
        d_ff=theirs.intermediate_size,
        window=theirs.sliding_window,
        full_attention_every=kinds.index("full_attention") + 1,
        rope_base_local=float(rope["sliding_attention"]["rope_theta"]),
        rope_base_global=float(rope["full_attention"]["rope_theta"]),
        query_scale=int(theirs.query_pre_attn_scalar),
        norm_eps=theirs.rms_norm_eps,
        max_seq_len=theirs.max_position_embeddings,
        vocab_size=theirs.vocab_size,
    )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files in float32, under our names."""
    paths, weights = sorted(folder.glob("*.safetensors")), {}
    if not paths:
        raise DataError(f"{folder}: no .safetensors file is there, and pickled weights are not read")
    for path in paths:
        try:
            weights |= safetensors.torch.load_file(path)
        except safetensors.SafetensorError as error:
            raise IntegrityError(f"{path}: {error}; fetch it anew") from None
    try:
        return from_hugging_face(weights)
    except (KeyError, ValueError) as error:
        raise DataError(f"{folder}: {error}") from None


def own_record(path: Path, model: Gemma3Model, sha256: str) -> dict:
    """The record that was exported; IntegrityError if it is not that of these weights."""
    record = read_json(path)
    try:
        same_shape = hugging_face_config(ModelConfig(**record["config"])) == hugging_face_config(model.config)
        recorded = record["best"]["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path}: {error}; export the model anew") from None
    if recorded != sha256 or not same_shape:
        raise IntegrityError(
            f"{path}: is not the record of the model beside it (sha256 of the weights {recorded}, found "
            f"{sha256}); export the model anew or, if it was trained on since, delete model.json there"
        )
    return record
