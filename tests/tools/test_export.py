"""Models that leave for transformers and come from there compute the same, and nothing is lost on the way."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import yaml

from lm.core.errors import DataError
from lm.core.params import read_yaml
from lm.evaluate.generation import generate
from lm.formats.hugging_face import hugging_face_config, read_config, read_pretrained, to_hugging_face, write_pretrained
from lm.model.gemma3 import Gemma3Model, ModelParams
from lm.model.weights import load_trained
from lm.tokenizer.load import load_tokenizer
from support import ROOT
from support.model_cases import CPU, SHAPE, TEXTS, build, write_bpe, write_gemma_like, write_trained
from tools.export_hf import main
from tools.generate import main as generate_main

PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())
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


def call(*arguments) -> int:
    return main(list(map(str, arguments)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> SimpleNamespace:
    """A workspace as `dvc repro` leaves it, and its export."""
    folder = tmp_path_factory.mktemp("exported")
    tokenizer = write_bpe(folder / "tokenizer")
    model = build(tokenizer.vocab_size)
    record = write_trained(folder / "models", model, tokenizer)
    params = PARAMS | {"model": {"name": "micro"}, "models": {"micro": SHAPE}}
    params["train"] = PARAMS["train"] | {"seq_len": 32, "seed": 1, "eval_tokens": 512}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "metrics").mkdir()
    metrics = {"train": {"best_val_loss": 2.5, "steps": 20}, "data": {"train": {"documents": 9}}}
    metrics["eval"] = {"bits_per_byte": 1.23456789, "unseen_part": {"nats_per_token": 2.75}}
    metrics["eval"]["weights_sha256"] = record["best"]["sha256"][:12]
    for name, figures in metrics.items():
        (folder / "metrics" / f"{name}.json").write_text(json.dumps(figures))
    sources = {name: folder / name for name in ("models", "tokenizer", "metrics", "params.yaml")}
    options = [x for name, path in sources.items() for x in (f"--{path.stem}", path)]
    assert call(folder / "export", *options) == 0
    return SimpleNamespace(
        folder=folder, path=folder / "export", tokenizer=tokenizer, model=model, record=record, options=options
    )  # fmt: skip


@pytest.fixture(scope="module")
def theirs(exported):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(exported.path, output_loading_info=True)
    assert not any(info.values()), info
    return model


def draw_ids(vocab_size: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Out.


def test_transformers_computes_the_same_logits(exported, theirs):
    ids = draw_ids(exported.model.config.vocab_size, 3, 60)  # several windows of 8
    with torch.no_grad():
        wanted, found = exported.model(ids), theirs(ids).logits
    assert type(theirs).__name__ == "Gemma3ForCausalLM" and found.dtype == torch.float32
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_transformers_gives_the_same_ids_and_texts(exported):
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(exported.path)
    for text in [*TEXTS, "<|endoftext|> is ordinary text"]:
        ids = exported.tokenizer.encode(text)
        assert auto(text)["input_ids"] == ids and auto.decode(ids) == exported.tokenizer.decode(ids)
    assert auto.bos_token_id == auto.eos_token_id == exported.tokenizer.eot_id


def test_transformers_continues_a_text_greedily_as_we_do(exported, theirs):
    for text in TEXTS[:5]:
        ids = [exported.tokenizer.eot_id, *exported.tokenizer.encode(text)[:20]]
        settings = {"temperature": 0, "eot_id": exported.tokenizer.eot_id}
        ours = list(generate(exported.model, ids, 60, generator=torch.Generator(), **settings))
        x = torch.tensor([ids])
        found = theirs.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=60, do_sample=False)
        assert found[0].tolist() == ids + ours


def test_texts_begin_end_and_are_filled_up_with_the_end_of_text(exported, theirs):
    eot_id = exported.tokenizer.eot_id
    settings = theirs.generation_config
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (eot_id,) * 3
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (eot_id, eot_id)


def test_configuration_also_has_the_names_of_older_readers(exported):
    config = json.loads((exported.path / "config.json").read_text())
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (500_000.0, 10_000.0)
    assert config["architectures"] == ["Gemma3ForCausalLM"]


def test_every_embedding_is_trained_on(theirs):
    """That of a padding id would get no gradient where it is read."""
    assert theirs.model.embed_tokens.padding_idx is None


def test_card_tells_metrics_parameters_and_hashes(exported):
    card = (exported.path / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    for row in ("| bits_per_byte | 1.23457 |", "| unseen_part.nats_per_token | 2.75 |", "| best_val_loss | 2.5 |",
                "| train.documents | 9 |", f"| training tokens | {'a' * 64} |", f"| validation tokens | {'b' * 64} |",
                f"| tokenizer | {exported.tokenizer.sha256} |",
                f"| best_model_params.pt | {exported.record['best']['sha256']} |"):  # fmt: skip
        assert row in card
    params = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card, re.DOTALL)[1])
    assert params["models"] == {"micro": SHAPE} and params["train"]["seq_len"] == 32
    assert params["sources"] == {PARAMS["data"]["source"]: PARAMS["sources"][PARAMS["data"]["source"]]}
    assert "1,280 tokens of" in card


def test_the_code_of_the_card_runs(exported, monkeypatch, capsys):
    monkeypatch.chdir(exported.path)
    code = re.search(r"```python\n(.*?)```", (exported.path / "README.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(code.replace("100", "10"), names)
    assert names["ids"].tolist() == [[exported.tokenizer.eot_id]] and len(capsys.readouterr().out) > 1


def test_an_export_repeats_byte_for_byte_and_replaces_an_earlier_one(exported):
    before = contents(exported.path)
    (exported.path / "README.md").write_text("old")
    assert call(exported.path, *exported.options) == 0
    assert contents(exported.path) == before
    assert len({path.stat().st_mode for path in exported.path.iterdir()}) == 1


def test_an_export_holds_a_tokenizer_that_this_project_loads(exported):
    assert load_tokenizer(exported.path).sha256 == exported.tokenizer.sha256


@pytest.mark.parametrize("names", [["config.json", "model.safetensors"], ["model.json", "notes.txt"], ["a"]])
def test_another_folder_is_left_alone(exported, tmp_path, capsys, names):
    for name in names:
        (tmp_path / name).write_text("mine")
    assert call(tmp_path, *exported.options) == 2
    assert set(contents(tmp_path)) == set(names) and set(contents(tmp_path).values()) == {b"mine"}
    assert re.search(rf"error: {tmp_path}: (holds|has no) .*, so it is no earlier export", capsys.readouterr().err)


def test_a_file_is_left_alone(exported, tmp_path):
    (tmp_path / "x").write_text("mine")
    assert call(tmp_path / "x", *exported.options) == 2 and (tmp_path / "x").read_text() == "mine"


@pytest.mark.parametrize(
    ("file", "edit", "sentence"),
    [
        ("params.yaml", lambda p: p["train"].update(seq_len=64), "seq_len is 64, the model was trained with 32"),
        ("params.yaml", lambda p: p["models"]["micro"].update(d_ff=65), "d_ff is 65, the model was trained with 64"),
        ("metrics/train.json", lambda p: p.update(best_val_loss=2.4), "best_val_loss is 2.4, the model's was 2.5"),
        ("metrics/eval.json", lambda p: p.update(weights_sha256="0" * 12), "eval.json: is of the model 000000000000"),
        ("models/model.json", lambda r: r.update(tokenizer_sha256="0"), "trained with tokenizer 0…"),
    ],
)
def test_a_card_of_another_run_is_not_written(exported, tmp_path, capsys, file, edit, sentence):
    shutil.copytree(exported.folder, tmp_path, dirs_exist_ok=True)
    value = read_yaml(tmp_path / file)  # JSON is YAML too
    edit(value)
    (tmp_path / file).write_text(json.dumps(value))
    moved = [tmp_path / x.relative_to(exported.folder) if isinstance(x, Path) else x for x in exported.options]
    assert call(tmp_path / "new", *moved) == 4
    assert sentence in capsys.readouterr().err and not (tmp_path / "new").exists()


# And back.


def test_round_trip_gives_the_very_files(exported, tmp_path):
    assert call("--from", exported.path, tmp_path / "models") == 0
    model, record = load_trained(tmp_path / "models", CPU)
    best = (exported.folder / "models" / "best_model_params.pt").read_bytes()
    assert contents(tmp_path / "models").keys() == {"best_model_params.pt", "model.json"}
    assert (tmp_path / "models" / "best_model_params.pt").read_bytes() == best
    assert record == {name: value for name, value in exported.record.items() if name != "last"}
    assert model.config == exported.model.config


def test_an_import_never_writes_over_anything(exported, tmp_path, capsys):
    shutil.copytree(exported.folder / "models", tmp_path / "models")
    before = contents(tmp_path / "models")
    assert call("--from", exported.path, tmp_path / "models") == 2
    assert contents(tmp_path / "models") == before and "name another folder" in capsys.readouterr().err


def test_weights_that_changed_since_the_export_are_noticed(exported, tmp_path, capsys):
    shutil.copytree(exported.path, tmp_path / "hf")
    content = bytearray((tmp_path / "hf" / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "hf" / "model.safetensors").write_bytes(content)
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 4
    assert not (tmp_path / "models").exists()
    assert "describes another model than the one beside it" in capsys.readouterr().err
    (tmp_path / "hf" / "model.json").unlink()  # as if trained on elsewhere
    assert call("--from", tmp_path / "hf", tmp_path / "models", "--seq_len", 32, *exported.options[2:4]) == 0
    assert load_trained(tmp_path / "models", CPU)[1]["tokenizer_sha256"] == exported.tokenizer.sha256


def test_a_configuration_that_changed_since_the_export_is_noticed(exported, tmp_path, capsys):
    shutil.copytree(exported.path, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"sliding_window": 9}))
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 4
    assert "describes another model than the one beside it" in capsys.readouterr().err


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> SimpleNamespace:
    """What transformers saves: bfloat16, in shards, with a tokenizer of Gemma's kind and three entries to spare."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    folder = tmp_path_factory.mktemp("foreign")
    tokenizer = write_gemma_like(folder / "tokenizer", folder / "hf")
    model = build(tokenizer.vocab_size + 3, n_layer=3, full_attention_every=2)
    theirs = Gemma3ForCausalLM(Gemma3TextConfig(**hugging_face_config(model.config)))
    theirs.load_state_dict(to_hugging_face(model.state_dict()), strict=False)
    theirs.bfloat16().save_pretrained(folder / "hf", max_shard_size="40KB")
    assert len(list((folder / "hf").glob("*.safetensors"))) > 1
    theirs = Gemma3ForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32)
    return SimpleNamespace(folder=folder, hf=folder / "hf", theirs=theirs, tokenizer=tokenizer)


def test_a_foreign_model_is_imported_and_generates(foreign, tmp_path, capsys):
    tokenizer = ["--tokenizer", foreign.folder / "tokenizer"]
    assert call("--from", foreign.hf, tmp_path / "models", *tokenizer, "--seq_len", 48) == 0
    model, record = load_trained(tmp_path / "models", CPU)
    ids = draw_ids(model.config.vocab_size, 2, 50)
    with torch.no_grad():
        wanted = foreign.theirs(ids).logits
        assert (model(ids) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert record["seq_len"] == 48 and record["best"]["val_loss"] is None and record["eval_tokens"] == 0
    assert record.keys() >= {"config", "seed", "data_sha256", "segments", "tokenizer_sha256"}
    assert record["imported"].keys() == {path.name for path in foreign.hf.glob("*.safetensors")}
    state = torch.load(tmp_path / "models" / "best_model_params.pt", weights_only=True)
    assert list(state) == list(Gemma3Model(model.config).state_dict())
    assert {weight.dtype for weight in state.values()} == {torch.float32}
    capsys.readouterr()
    options = ["--models", str(tmp_path / "models"), *map(str, tokenizer)]
    assert generate_main(["some words", "--max_new_tokens", "20", "--temperature", "2", *options]) == 0
    assert capsys.readouterr().out.startswith("some words")


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), 3, "no tokenizer.json, which tells the ids"),
        (lambda f: shutil.copy(f.parent / "other" / "tokenizer.json", f), 4, "its tokenizer is another than"),
        (lambda f: [p.unlink() for p in f.glob("*.safetensors")], 3, "pickled weights are not read"),
        (lambda f: next(f.glob("*.safetensors")).unlink(), 4, "do not fit config.json: .*Missing key"),
        (lambda f: next(f.glob("*.safetensors")).write_bytes(b"\0" * 99), 4, r"model-\d+-of-\d+.safetensors: .*again"),
        (lambda f: (f / "config.json").unlink(), 4, "config.json: missing"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_refused(foreign, tmp_path, capsys, change, status, sentence):
    shutil.copytree(foreign.hf, tmp_path / "hf")
    write_bpe(tmp_path / "other")
    torch.save({}, tmp_path / "hf" / "pytorch_model.bin")
    change(tmp_path / "hf")
    found = call("--from", tmp_path / "hf", tmp_path / "models", "--tokenizer", foreign.folder / "tokenizer",
                 "--seq_len", 32)  # fmt: skip
    assert found == status and not (tmp_path / "models").exists()
    assert re.search(f"^error: .*{sentence}", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("seq_len", [0, 97])
def test_a_window_that_the_model_does_not_have_is_refused(foreign, tmp_path, capsys, seq_len):
    assert call("--from", foreign.hf, tmp_path / "models", "--seq_len", seq_len) == 2
    assert f"--seq_len is {seq_len}, needed: from 1 to the model's max_seq_len (96)" in capsys.readouterr().err


def test_a_vocabulary_that_is_too_small_is_refused(foreign, tmp_path, capsys):
    shutil.copytree(foreign.hf, tmp_path / "hf")
    for path in (tmp_path / "hf").glob("model*"):
        path.unlink()
    small = build(foreign.tokenizer.vocab_size - 1)
    safetensors.torch.save_file(to_hugging_face(small.state_dict()), tmp_path / "hf" / "model.safetensors")
    config = {"model_type": "gemma3_text", **hugging_face_config(small.config)}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    options = ["--tokenizer", foreign.folder / "tokenizer", "--seq_len", 9]
    assert call("--from", tmp_path / "hf", tmp_path / "models", *options) == 3
    wanted = foreign.tokenizer.vocab_size
    assert f"vocab_size is {wanted - 1}, needed: at least the tokenizer's {wanted}" in capsys.readouterr().err


def test_untied_embeddings_are_refused(foreign, tmp_path):
    shutil.copytree(foreign.hf, tmp_path / "hf")
    head = {"lm_head.weight": torch.ones_like(foreign.theirs.model.embed_tokens.weight)}
    safetensors.torch.save_file(head, tmp_path / "hf" / "head.safetensors")
    with pytest.raises(DataError, match="tied"):
        read_pretrained(tmp_path / "hf")


# Configurations.


def write_config(folder: Path, **changes) -> Path:
    (folder / "config.json").write_text(json.dumps(PUBLISHED | changes))
    return folder / "config.json"


def test_the_published_configuration_is_the_preset(tmp_path):
    assert read_config(write_config(tmp_path)) == ModelParams(**PARAMS["models"]["gemma3_270m"]).config(262144)


def test_rope_bases_in_the_older_form_are_read(tmp_path):
    found = read_config(write_config(tmp_path, rope_theta=5e5, rope_local_base_freq=2e4))
    assert (found.rope_base_global, found.rope_base_local) == (5e5, 2e4)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("model_type", "gemma3", "model_type is 'gemma3', needed: 'gemma3_text'"),
        ("final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0, needed: None"),
        ("attn_logit_softcapping", 50.0, "attn_logit_softcapping is 50.0, needed: None"),
        ("use_bidirectional_attention", True, "use_bidirectional_attention is True, needed: False"),
        ("attention_bias", True, "attention_bias is True, needed: False"),
        ("hidden_activation", "silu", "hidden_activation is silu, needed: gelu_pytorch_tanh"),
        ("tie_word_embeddings", False, "tie_word_embeddings is False, needed: True"),
        ("rope_scaling", {"factor": 8.0, "rope_type": "linear"}, "rope_parameters is .*linear"),
        ("layer_types", ["full_attention", *["sliding_attention"] * 17], "layer_types is .*, needed: "),
        ("query_pre_attn_scalar", 0, "query_scale is 0, needed: above 0"),
        ("hidden_size", 642, "not a valid shape of Gemma 3: "),
        ("num_hidden_layers", "many", "not a valid shape of Gemma 3: "),
    ],
)
def test_what_this_model_does_not_compute_is_refused(tmp_path, name, value, sentence):
    with pytest.raises(DataError, match=sentence):
        read_config(write_config(tmp_path, **{name: value}))


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 9])
def test_every_pattern_of_layers_comes_back(tmp_path, every):
    model, ids = build(300, full_attention_every=every), draw_ids(300, 2, 40)
    write_pretrained(tmp_path, model, eot_id=299)
    assert torch.equal(read_pretrained(tmp_path)(ids), model(ids))
