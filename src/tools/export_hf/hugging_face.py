"""Models as folders: those of data/models, and those of transformers (config.json and safetensors, published names).

A model is read only if lm.model computes exactly the same; pickled weights are never opened. A reader of an export runs
its own code: if the code in src/lm/model was changed, the same weights are another model there.
"""

import contextlib
import io
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from lm.core.errors import DataError, IntegrityError, UserError
from lm.core.files import atomic_write, check_types, read_json, safe_join, write_json
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.score import token_losses
from lm.model.weights import (
    RECORD,
    build,
    check_trained_with,
    load_trained,
    recorded_config,
    recorded_numerics,
)
from lm.tokenizer.build import write_for_generation
from lm.tokenizer.load import META, Tokenizer, load_tokenizer
from tools.record.lock import warn_of_changed_code
from tools.record.paths import TOKENIZER

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Our names of the sizes and those of Gemma3TextConfig.
NAMES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "head_dim": "head_dim",
    "sliding_window": "sliding_window",
    "query_pre_attn_scalar": "query_pre_attn_scalar",
    "norm_eps": "rms_norm_eps",
    "max_seq_len": "max_position_embeddings",
}
# Fields of a published configuration for which lm.model supports only one value or one form.
FIXED = (
    "hidden_activation",
    "attention_bias",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "use_bidirectional_attention",
    "tie_word_embeddings",
    "layer_types",
    "rope_parameters",
    "query_pre_attn_scalar",
)
# Fields of a config.json that give the shape, including their names before transformers 5.
READ = {*NAMES.values(), *FIXED, "rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"}


def to_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our state dict under the names of transformers' Gemma3ForCausalLM, without its tied lm_head."""
    return {f"model.{name}": weight for name, weight in state.items()}


def from_hugging_face(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a Gemma3ForCausalLM under our names, in float32. Raise ValueError for an untied head."""
    state = dict(state)
    head = state.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, state["model.embed_tokens.weight"]):
        raise ValueError("lm_head.weight differs from model.embed_tokens.weight; the embeddings must be tied")
    return {name.removeprefix("model."): weight.float() for name, weight in state.items()}


def hugging_face_config(config: ModelConfig) -> dict:
    """Return the arguments of transformers' Gemma3TextConfig; an export adds the special ids of its tokenizer."""
    bases = {"sliding_attention": config.rope_base_local, "full_attention": config.rope_base_global}
    is_full = [config.is_full(layer) for layer in range(config.n_layer)]
    return {theirs: getattr(config, ours) for ours, theirs in NAMES.items()} | {
        "layer_types": ["full_attention" if full else "sliding_attention" for full in is_full],
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": base} for name, base in bases.items()},
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }


def write_pretrained(folder: Path, model: Gemma3Model, eot_id: int) -> None:
    """Write weights (float32), config.json and generation_config.json; `eot_id` begins and ends a text."""
    # With more than one entry of metadata the bytes would differ from run to run.
    content = safetensors.torch.save(to_hugging_face(model.state_dict()), metadata={"format": "pt"})
    with atomic_write(folder / WEIGHTS) as file:
        file.write(content)
    special_ids = {"bos_token_id": eot_id, "eos_token_id": eot_id}
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "float32",
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        **hugging_face_config(model.config),
        # The names before transformers 5. Before 4.53, sliding_window_pattern alone says which layers slide: without it
        # every sixth layer is full, like those of the published model.
        "rope_theta": model.config.rope_base_global,
        "rope_local_base_freq": model.config.rope_base_local,
        "sliding_window_pattern": model.config.full_attention_every,
    }
    write_json(folder / CONFIG, config | special_ids)
    # pad_token_id is for generation alone: in config.json it would stop the gradient of that embedding.
    sampling = {"do_sample": True, "temperature": 0.8, "top_k": 50}  # the defaults of `python src generate`
    write_json(folder / GENERATION_CONFIG, special_ids | {"pad_token_id": eot_id} | sampling)


def read_pretrained(folder: Path) -> Gemma3Model:
    """Return the Gemma 3 of a folder, in float32. Raise DataError for another model, IntegrityError for damage."""
    config = read_config(folder / CONFIG)
    paths = weight_files(folder)
    weights = read_weights(folder, paths)
    try:
        return build(config, weights, sum(path.stat().st_size for path in paths))
    except (RuntimeError, TypeError, ValueError) as error:
        raise IntegrityError(f"{folder}: its weights do not fit {CONFIG}: {' '.join(str(error).split())}") from None


def read_config(path: Path) -> ModelConfig:
    """Return the shape in a config.json; raise DataError if lm.model does not compute this model."""
    from transformers import Gemma3TextConfig

    content = read_json(path, "name the folder of a model in Hugging Face's format, or download it again")
    if content.get("model_type") != "gemma3_text":
        raise DataError(f"{path}: model_type is {content.get('model_type')!r}; it must be 'gemma3_text'")
    try:
        theirs = Gemma3TextConfig(**{name: content[name] for name in content if name in READ})
        ours = shape_of(theirs)
    except Exception as error:  # transformers raises many types for what it cannot read
        raise DataError(f"{path}: not a valid shape of Gemma 3: {' '.join(str(error).split())}") from None
    wanted = Gemma3TextConfig(**hugging_face_config(ours))
    for name in FIXED:
        if (getattr(theirs, name) or None) != (getattr(wanted, name) or None):
            raise DataError(f"{path}: {name} is {getattr(theirs, name)}; it must be {getattr(wanted, name)}")
    return ours


def shape_of(theirs) -> ModelConfig:
    """Return the shape of a Gemma3TextConfig; raise ValueError if it is not valid."""
    sizes = {ours: getattr(theirs, name) for ours, name in NAMES.items()}
    return ModelConfig(
        **sizes | {"query_pre_attn_scalar": int(theirs.query_pre_attn_scalar)},
        full_attention_every=[*theirs.layer_types, "full_attention"].index("full_attention") + 1,
        rope_base_local=float(theirs.rope_parameters["sliding_attention"]["rope_theta"]),
        rope_base_global=float(theirs.rope_parameters["full_attention"]["rope_theta"]),
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights: model.safetensors or, without it, those that the index names.

    transformers chooses in the same way. Raise DataError if the folder has neither, or an adapter.
    """
    for name in ADAPTERS:
        if (folder / name).exists():
            raise DataError(f"{folder / name}: is an adapter, which is not read; merge it into the model")
    index = folder / INDEX
    single = folder / WEIGHTS
    if single.exists():
        return [single]
    if not index.exists():
        raise DataError(f"{folder}: has neither {WEIGHTS} nor {INDEX}, and pickled weights are not read")

    # The shards of an index.
    advice = "download it again"
    content = read_json(index, advice)
    check_types(index, content, {"weight_map": {str: str}}, advice)
    paths = [safe_join(folder, name, index) for name in sorted(set(content["weight_map"].values()))]
    for path in paths:
        if not path.exists():
            raise IntegrityError(f"{path}: missing, and {index} names it; {advice}")
    return paths


def read_weights(folder: Path, paths: list[Path]) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files in float32, under our names.

    Raise DataError, with the name of the tensor, for one that is not of floats, or not finite.
    """
    weights: dict[str, Tensor] = {}
    for path in paths:
        try:
            loaded = safetensors.torch.load_file(path)
        except (OSError, UserError):
            raise
        except Exception as error:  # SafetensorError, and others for types that torch does not know
            raise IntegrityError(f"{path}: {error}; download it again") from None
        for name, weight in loaded.items():
            if weight.dtype not in FLOATS:
                raise DataError(f"{path}: {name} is of {weight.dtype}; it must be of floats, not quantized")
            if not weight.isfinite().all():
                raise DataError(f"{path}: {name} has values that are not finite; take the weights of an earlier save")
        weights |= loaded
    try:
        return from_hugging_face(weights)
    except (KeyError, ValueError, RuntimeError) as error:
        raise DataError(f"{folder}: {error}") from None


def read_exported_record(path: Path, model: Gemma3Model, sha256: str) -> dict:
    """Return the exported model.json; raise IntegrityError if it describes other weights."""
    record = read_json(path, "export the model again")
    config = recorded_config(path, record, "export the model again")
    recorded = record["best"]["sha256"]
    same_shape = hugging_face_config(config) == hugging_face_config(model.config)
    if recorded != sha256 or not same_shape:
        other = f"another model than the one beside it (sha256 of its weights {recorded}, found {sha256})"
        advice = "export the model again or, if it was trained further, delete this model.json"
        raise IntegrityError(f"{path}: describes {other}; {advice}")
    return record


# The models of runs.


def load_run(models: Path, tokenizer_folder: Path) -> tuple[Gemma3Model, dict, Tokenizer]:
    """Return the best model of a run, its record and its tokenizer. Raise IntegrityError if they do not fit.

    The model is on the CPU and computes in the numerics of its training. Warn if its code changed since then.
    """
    numerics = recorded_numerics(read_json(models / RECORD))
    model, record = load_trained(models, torch.device("cpu"), numerics)
    tokenizer = load_tokenizer(tokenizer_folder)
    check_trained_with(tokenizer.sha256, tokenizer.folder, models, record)
    warn_of_changed_code(models)
    return model, record, tokenizer


def write_model(folder: Path, model: Gemma3Model, record: dict, tokenizer: Tokenizer) -> None:
    """Write weights, configuration, record and tokenizer, as trained and for generation, into an empty folder."""
    (folder / TOKENIZER.name).mkdir()
    for name in (META, *tokenizer.meta["files"]):
        shutil.copyfile(tokenizer.folder / name, folder / TOKENIZER.name / name)
    write_for_generation(folder, tokenizer.folder, tokenizer.eot_id)
    write_pretrained(folder, model, tokenizer.eot_id)
    write_json(folder / RECORD, {name: value for name, value in record.items() if name != "last"})


# Check what a reader of an export computes.

SCORED_TOKENS = 64
SEED = 0  # of the ids of the window
SAFETY = 4  # models with unchanged code have differed by a seventh of the bound at most


class Agreement(NamedTuple):
    """The losses of one window under two implementations, in nats per token."""

    ours: float  # mean
    theirs: float  # mean
    largest_difference: float  # of one token
    allowed: float  # of one token: what rounding explains


def draw_window(config: ModelConfig, eot_id: int) -> Tensor:
    """Return the ids (1, T + 1) int64 of one document: end-of-text, then ids drawn from all others.

    It is longer than the window of the sliding layers by SCORED_TOKENS, if the model takes as many.
    """
    length = min(config.max_seq_len, config.sliding_window + SCORED_TOKENS)
    generator = torch.Generator().manual_seed(SEED)
    others = torch.randint(config.vocab_size - 1, (1, length), generator=generator)
    others += others >= eot_id
    return torch.cat([torch.tensor([[eot_id]]), others], dim=1)


def compare_losses(model: Gemma3Model, theirs, eot_id: int) -> Agreement:
    """Return the losses of the last SCORED_TOKENS of a window under `model` and under a Gemma3ForCausalLM.

    Both are in float32 on the CPU; `model` computes in the numerics of its training.
    """
    ids = draw_window(model.config, eot_id)
    inputs = ids[:, :-1]
    targets = ids[:, 1:][:, -SCORED_TOKENS:]
    with torch.no_grad():
        our_nats = token_losses(model, inputs, targets)[0].double()
        logits = theirs(inputs, logits_to_keep=targets.shape[1]).logits[0]
        their_nats = F.cross_entropy(logits.double(), targets[0], reduction="none")
    difference = (our_nats - their_nats).abs().max().item()
    ours = our_nats.mean().item()
    return Agreement(ours, their_nats.mean().item(), difference, rounding_bound(model.config, ours))


def rounding_bound(config: ModelConfig, nats: float) -> float:
    """Return the difference of a token's loss that rounding to float32 can explain.

    The rounding errors of a sum grow with the square root of its terms, which are about `n_layer` times `d_model`.
    """
    rounding = torch.finfo(torch.float32).eps
    num_terms = config.n_layer * config.d_model
    return SAFETY * rounding * math.sqrt(num_terms) * max(1.0, nats)


def check_reader(folder: Path, model: Gemma3Model, theirs, eot_id: int) -> None:
    """Raise IntegrityError if `theirs` computes other losses than `model`; `folder` is what was to be written."""
    found = compare_losses(model, theirs, eot_id)
    if not found.largest_difference <= found.allowed:  # a loss that is not a number is never close
        losses = f"{found.theirs:.4f} nats per token of a test window, this code {found.ours:.4f}"
        problem = f"transformers computes {losses} (one token differs by {found.largest_difference:.1e})"
        why = "the code in src/lm/model does not compute the published Gemma 3, and nothing was written"
        remedy = "`git diff src/lm/model` shows your change; undo it, and train again if the model was trained with it"
        raise IntegrityError(f"{folder}: {problem}: {why}; {remedy}")


def open_with_transformers(folder: Path, **options):
    """Return the causal model of a folder in float32, without a word; code and pickled weights are not read."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    options |= {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
    with contextlib.redirect_stderr(io.StringIO()):  # it prints progress
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval()
