"""`python src export_hf`: models keep their logits and their records on the way to transformers and back."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from lm.core.files import read_json, write_json
from lm.model.seen import SEEN
from lm.model.weights import load_trained
from lm.tokenizer.load import load_tokenizer
from support.damage import flip
from support.export_cases import call
from support.model_cases import CPU, TEXTS, assert_close, build, write_bpe, write_gemma_like
from support.refusal import files_below, refused
from tools.export_hf.hugging_face import INDEX, hugging_face_config, to_hugging_face
from tools.generate import parse as parse_generate


@pytest.fixture(scope="module")
def theirs(exported):
    """The exported model as transformers loads it, which has a place for every weight."""
    from transformers import AutoModelForCausalLM

    model, problems = AutoModelForCausalLM.from_pretrained(exported.path, output_loading_info=True)
    assert not any(problems.values()), problems
    return model


@pytest.fixture(scope="module")
def their_tokenizer(exported):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(exported.path)


def draw_ids(vocab_size: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))


# Export.


def test_transformers_tokenizes_and_decodes_the_same(exported, their_tokenizer):
    eot_id = exported.tokenizer.eot_id

    for text in [*TEXTS, "<|endoftext|> is ordinary text"]:
        ids = exported.tokenizer.encode(text)
        assert their_tokenizer(text)["input_ids"] == [eot_id, *ids]
        assert their_tokenizer(text, add_special_tokens=False)["input_ids"] == ids
        assert their_tokenizer.decode(ids) == exported.tokenizer.decode(ids)


def test_generation_has_our_defaults_and_the_end_of_text_begins_ends_and_pads_a_text(exported, theirs, their_tokenizer):
    ours = parse_generate([])
    eot_id = exported.tokenizer.eot_id

    settings = theirs.generation_config

    assert settings.do_sample
    assert settings.temperature == ours.temperature
    assert settings.top_k == ours.top_k
    for ids in (settings, their_tokenizer, theirs.config):
        assert ids.bos_token_id == ids.eos_token_id == eot_id
    assert settings.pad_token_id == their_tokenizer.pad_token_id == eot_id
    # On the right, it would stand between the shorter prompts of a batch and their continuations.
    assert their_tokenizer.padding_side == "left"
    assert theirs.model.embed_tokens.padding_idx is None, "its embedding would get no gradient"


def test_no_folder_is_overwritten(tmp_path, capsys):
    (tmp_path / "a").write_text("mine")

    status = call(tmp_path)

    refused(status, capsys.readouterr().err, 2, f"{tmp_path}: exists; name a new folder")
    assert files_below(tmp_path) == {"a": b"mine"}


# Import of an export.


def test_a_round_trip_restores_the_files_and_the_record_of_the_best_weights(exported, tmp_path):
    imported = tmp_path / "models"

    status = call("--from", exported.path, imported)

    assert status == 0
    files = files_below(imported)
    del files["model.json"]
    trained = files_below(exported.folder / "data")
    tokenizer = {path: content for path, content in trained.items() if path.startswith("tokenizer/")}
    of_model = {name: trained[f"models/{name}"] for name in ("best_model_params.pt", SEEN)}
    assert files == tokenizer | of_model
    model, record = load_trained(imported, CPU)
    assert "last" not in record
    assert record | {"last": exported.record["last"]} == exported.record
    assert model.config == exported.model.config


def replace_tokenizer(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")
    write_bpe(folder / "tokenizer", seed=4)


def change_config(folder: Path) -> None:
    """It changes what the model computes, and no weight."""
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"sliding_window": 9})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replace_tokenizer, "trained with tokenizer"),
        (lambda hf: flip(hf / "model.safetensors"), "describes another model than the one beside it"),
        (change_config, "describes another model than the one beside it"),
    ],
)
def test_a_record_of_another_model_is_refused(exported, tmp_path, capsys, change, said):
    copied = shutil.copytree(exported.path, tmp_path / "hf")
    change(copied)

    status = call("--from", copied, tmp_path / "models")

    refused(status, capsys.readouterr().err, 4, said)
    assert not (tmp_path / "models").exists()


# Import of a model that transformers saved.


def test_a_model_saved_by_transformers_is_imported(exported, theirs, tmp_path):
    """Fine-tuning leaves padding and truncation in tokenizer.json."""
    from transformers import AutoTokenizer

    tuned = tmp_path / "hf"
    their_tokenizer = AutoTokenizer.from_pretrained(exported.path)
    their_tokenizer(TEXTS[:2], padding=True, truncation=True, max_length=9)
    their_tokenizer.save_pretrained(tuned)
    theirs.save_pretrained(tuned)

    status = call("--from", tuned, tmp_path / "models")

    assert status == 0
    model, record = load_trained(tmp_path / "models", CPU)
    tokenizer = load_tokenizer(tmp_path / "models" / "tokenizer")
    ids = draw_ids(model.config.vocab_size, 2, 40)
    assert torch.equal(model(ids), exported.model(ids))
    assert record["tokenizer_sha256"] == tokenizer.sha256
    assert record["best"]["val_loss"] is None
    for text in TEXTS:
        assert tokenizer.encode(text) == exported.tokenizer.encode(text)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> SimpleNamespace:
    """A model that transformers saved: bfloat16, in shards, with a Gemma-like tokenizer and three unused entries.

    An older save is beside it, which transformers does not read.
    """
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    folder = tmp_path_factory.mktemp("foreign")
    hf = folder / "hf"
    tokenizer = write_gemma_like(folder / "tokenizer", hf)
    model = build(tokenizer.vocab_size + 3, n_layer=3, full_attention_every=2)
    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(model.config)))
    theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    theirs.bfloat16().save_pretrained(hf, max_shard_size="40KB")
    assert len(shards(hf)) > 1
    save_file({name: weight * 0.5 for name, weight in load_file(shards(hf)[0]).items()}, hf / "old.safetensors")

    theirs = Gemma3ForCausalLM.from_pretrained(hf, dtype=torch.float32)
    return SimpleNamespace(folder=hf, theirs=theirs)


def test_a_foreign_model_computes_the_same_logits(foreign, tmp_path):
    assert call("--from", foreign.folder, tmp_path / "models") == 0

    model, _ = load_trained(tmp_path / "models", CPU)
    ids = draw_ids(model.config.vocab_size, 2, 50)
    with torch.no_grad():
        assert_close(model(ids), foreign.theirs(ids).logits)


def add_tokens(folder: Path) -> None:
    """Add more tokens to a tokenizer than its model has unused entries."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<one>", "<two>", "<three>", "<four>"])
    tokenizer.save_pretrained(folder)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def remove_weights(folder: Path) -> None:
    """Leave only the weights of pytorch_model.bin."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def lose_a_number(folder: Path) -> None:
    weights = load_file(shards(folder)[0])
    weights["model.embed_tokens.weight"][7, 3] = torch.nan
    save_file(weights, shards(folder)[0])


REFUSED = [
    (add_tokens, 3, "vocab_size is "),
    (lambda hf: (hf / "tokenizer.json").unlink(), 2, "(missing: tokenizer.json)"),
    (remove_weights, 3, "pickled weights are not read"),
    (lambda hf: (hf / "adapter_config.json").touch(), 3, "adapter_config.json"),
    (lambda hf: write_json(hf / INDEX, {"weight_map": {"norm": "../x"}}), 4, "'../x'"),
    (lose_a_number, 3, "model.embed_tokens.weight"),
    (lambda hf: shards(hf)[0].write_bytes(b"0" * 99), 4, ".safetensors: "),
]


@pytest.mark.parametrize(("change", "status", "said"), REFUSED)
def test_a_folder_that_cannot_be_imported_is_refused(foreign, tmp_path, capsys, change, status, said):
    folder = shutil.copytree(foreign.folder, tmp_path / "hf")
    torch.save({}, folder / "pytorch_model.bin")
    change(folder)

    found = call("--from", folder, tmp_path / "models")

    assert not (tmp_path / "models").exists()
    refused(found, capsys.readouterr().err, status, said)
