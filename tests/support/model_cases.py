"""Small untrained models with tokenizers, as the train stage leaves them."""

import dataclasses
import json
import types
from pathlib import Path

import torch

from lm.core.numerics import Numerics
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.weights import save_models
from lm.tokenizer.build import write_huggingface, write_trained_bpe
from lm.tokenizer.load import Tokenizer, load_tokenizer
from support import tokenizer_cases
from support.tokenizer_cases import fuzzed_texts

SHAPE = {
    "n_layer": 4,
    "n_head": 4,
    "n_kv_head": 2,
    "head_dim": 16,
    "d_model": 32,
    "d_ff": 64,
    "sliding_window": 8,
    "full_attention_every": 3,
    "rope_base_local": 10_000.0,
    "rope_base_global": 500_000.0,
    "query_pre_attn_scalar": 24,
    "norm_eps": 1e-6,
    "max_seq_len": 96,
}
TEXTS = fuzzed_texts(300, seed=5)
CPU = torch.device("cpu")


def write_bpe(folder: Path, seed: int = 3) -> Tokenizer:
    """A byte-level tokenizer of 400 entries."""
    folder.mkdir(parents=True)
    write_trained_bpe(folder, [fuzzed_texts(200, seed)], 400)
    return load_tokenizer(folder)


def write_gemma_like(folder: Path, source: Path) -> Tokenizer:
    """A tokenizer of Gemma's kind, ▁ for a space and bytes for what it has no entry for, as in a repository.

    `source` is the repository's folder, `folder` what make_tokenizer would make of it.
    """
    source.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    write_huggingface(folder, tokenizer_cases.write_gemma_like(source, 400, after=()))
    return load_tokenizer(folder)


def random_model(config: ModelConfig, seed: int = 0, numerics: Numerics = "fast") -> Gemma3Model:
    """Return a model whose norms are random too, so that a test fails if one of them is left out."""
    model = Gemma3Model(config, numerics)
    generator = torch.Generator().manual_seed(seed)
    model.init_weights(generator)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.data.normal_(0, 0.3, generator=generator)
    return model


def build(vocab_size: int, seed: int = 0, numerics: Numerics = "fast", **changes) -> Gemma3Model:
    """Return an untrained model whose next id depends strongly on the whole text."""
    model = random_model(ModelConfig(**SHAPE | changes, vocab_size=vocab_size), seed, numerics)
    model.norm.weight.data.fill_(7)
    return model


def let_models_see_the_next_token(monkeypatch) -> None:
    """Plant a fault: add the hidden state of the next position to each."""
    hidden = Gemma3Model.hidden

    def see_next(model, ids, cache=None):
        h = hidden(model, ids, cache)
        return h + h.roll(-1, 1)

    monkeypatch.setattr(Gemma3Model, "hidden", see_next)


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Raise AssertionError unless equal within `tolerance` of the largest entry, or of 1 if that is smaller."""
    largest = max(1.0, wanted.abs().max())
    assert (found - wanted).abs().max() <= tolerance * largest


def write_trained(folder: Path, model: Gemma3Model, tokenizer: Tokenizer) -> dict:
    """Write data/models as the train stage leaves it after 20 steps of 128 tokens; return the record."""
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    record = {
        "config": dataclasses.asdict(model.config),
        "seq_len": 32,
        "seed": 1,
        "eval_tokens": 512,
        "attend_across_documents": True,
        "eot_id": tokenizer.eot_id,
        "tokenizer_sha256": tokenizer.sha256,
        "data_sha256": {"train": "a" * 64, "validation": "b" * 64},
        "init_sha256": None,
        "segments": [],
        "training": {
            "steps": 20,
            "epochs": 0.5,
            "training_flops": 1e9,
            "parameters": 1000,
            "last_train_loss": 2.4,
        },
        "best": {"step": 10, "tokens_seen": 1280, "val_loss": 2.5},
        "last": {"step": 20, "tokens_seen": 2560, "val_loss": 2.6},
    }
    save_models(folder, weights, weights, record)
    return json.loads((folder / "model.json").read_text())


def optimizer_params(optimizer="muon", numerics: Numerics = "fast"):
    """Return what `build_optimizers` reads of the parameters."""
    return types.SimpleNamespace(
        optimizer=optimizer,
        weight_decay=0.1,
        beta1=0.9,
        beta2=0.95,
        numerics=numerics,
    )
