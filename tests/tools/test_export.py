"""`python src export_hf`: models keep their logits and their records on the way to transformers and back."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lm.core.files import read_json, write_json
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import load_trained
from lm.tokenizer.load import load_tokenizer
from support.export_cases import call, write_export
from support.model_cases import CPU, TEXTS, build, write_bpe, write_gemma_like
from tools.common.export import load_run
from tools.common.hugging_face import hugging_face_config, to_hugging_face
from tools.generate import main as generate_main
from tools.generate import parse as parse_generate


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> SimpleNamespace:
    return write_export(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def theirs(exported):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(exported.path, output_loading_info=True)
    assert not any(info.values()), info
    return model


def draw_ids(vocab_size: int, *shape: int) -> torch.Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Export.


def test_transformers_computes_the_same_logits(exported, theirs):
    ids = draw_ids(exported.model.config.vocab_size, 3, 60)  # several windows of 8
    with torch.no_grad():
        wanted = exported.model(ids)
        found = theirs(ids).logits
    assert type(theirs).__name__ == "Gemma3ForCausalLM" and found.dtype == torch.float32
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_transformers_tokenizes_and_decodes_the_same(exported):
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(exported.path)
    for text in [*TEXTS, "<|endoftext|> is ordinary text"]:
        ids = exported.tokenizer.encode(text)
        assert auto(text, add_special_tokens=False)["input_ids"] == ids
        assert auto(text)["input_ids"] == [exported.tokenizer.eot_id, *ids]
        assert auto.decode(ids) == exported.tokenizer.decode(ids)
    assert auto.bos_token_id == auto.eos_token_id == auto.pad_token_id == exported.tokenizer.eot_id


def test_prompts_of_a_batch_continue_as_each_alone(exported, theirs):
    """Padding on the right would put end-of-text tokens between a shorter prompt and its continuation."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(exported.path)
    prompts = ["", "some words", "a prompt of more tokens than the others", "x"]
    settings = {"do_sample": False, "max_new_tokens": 12}

    batch = auto(prompts, return_tensors="pt", padding=True)
    together = theirs.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :]

    assert auto.padding_side == "left" and len(set(batch["attention_mask"].sum(1).tolist())) > 2
    for prompt, continued in zip(prompts, together, strict=True):
        alone = auto(prompt, return_tensors="pt")
        expected = theirs.generate(**alone, **settings)[0, alone["input_ids"].shape[1] :]
        assert continued[: len(expected)].tolist() == expected.tolist()


def test_the_code_of_the_card_generates(exported, monkeypatch, capsys):
    monkeypatch.chdir(exported.path)
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    names = {}
    exec(code.replace("100", "10"), names)
    assert names["prompt"]["input_ids"].tolist() == [[exported.tokenizer.eot_id]] and len(capsys.readouterr().out) > 1


def test_generation_has_our_defaults(exported, theirs):
    eot_id = exported.tokenizer.eot_id
    ours = parse_generate([])
    settings = theirs.generation_config
    assert settings.do_sample and (settings.temperature, settings.top_k) == (ours.temperature, ours.top_k)
    assert theirs.model.embed_tokens.padding_idx is None, "its embedding would get no gradient"
    assert (settings.bos_token_id, settings.eos_token_id, settings.pad_token_id) == (eot_id,) * 3
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (eot_id, eot_id)


@pytest.mark.parametrize("names", [["config.json", "model.safetensors"], ["a"]])
def test_other_folders_are_not_overwritten(exported, tmp_path, capsys, names):
    for name in names:
        (tmp_path / name).write_text("mine")
    assert call(tmp_path, *exported.options) == 2
    assert set(contents(tmp_path)) == set(names) and set(contents(tmp_path).values()) == {b"mine"}
    assert re.search(rf"error: {tmp_path}: (holds|has no) .*, so it is not an earlier export", capsys.readouterr().err)


# Import.


def test_a_round_trip_restores_the_same_files(exported, tmp_path):
    before = contents(exported.path)
    (exported.path / "README.md").write_text("old")
    assert call(exported.path, *exported.options) == 0 and contents(exported.path) == before
    assert call("--from", exported.path, tmp_path / "models") == 0
    model, record = load_trained(tmp_path / "models", CPU)
    best = (exported.folder / "models" / "best_model_params.pt").read_bytes()
    ours = contents(exported.folder)
    assert contents(tmp_path / "models") == {
        **{f"tokenizer/{name}": ours[f"tokenizer/{name}"] for name in contents(exported.folder / "tokenizer")},
        "best_model_params.pt": best,
        "model.json": (tmp_path / "models" / "model.json").read_bytes(),
    }
    assert (tmp_path / "models" / "best_model_params.pt").read_bytes() == best
    assert record == {name: value for name, value in exported.record.items() if name != "last"}
    assert model.config == exported.model.config


def test_another_tokenizer_is_refused(exported, tmp_path, capsys):
    hf = shutil.copytree(exported.path, tmp_path / "hf")
    shutil.rmtree(hf / "tokenizer")
    write_bpe(hf / "tokenizer", seed=4)
    assert call("--from", hf, tmp_path / "models") == 4
    assert "trained with tokenizer" in capsys.readouterr().err and not (tmp_path / "models").exists()


def test_an_import_never_overwrites(exported, tmp_path, capsys):
    shutil.copytree(exported.folder / "models", tmp_path / "models")
    before = contents(tmp_path / "models")
    assert call("--from", exported.path, tmp_path / "models") == 2
    assert contents(tmp_path / "models") == before and "name another folder" in capsys.readouterr().err


def test_changed_weights_are_refused(exported, tmp_path, capsys):
    shutil.copytree(exported.path, tmp_path / "hf")
    content = bytearray((tmp_path / "hf" / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "hf" / "model.safetensors").write_bytes(content)
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 4
    assert not (tmp_path / "models").exists()
    assert "describes another model than the one beside it" in capsys.readouterr().err
    (tmp_path / "hf" / "model.json").unlink()  # as if trained on elsewhere
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 0
    assert load_trained(tmp_path / "models", CPU)[1]["best"]["val_loss"] is None


@pytest.mark.parametrize("change", [{"sliding_window": 9}, {"rms_norm_eps": 1e-5}])
def test_a_changed_configuration_is_refused(exported, tmp_path, capsys, change):
    """It changes what the model computes, and no weight."""
    shutil.copytree(exported.path, tmp_path / "hf")
    config = read_json(tmp_path / "hf" / "config.json")
    write_json(tmp_path / "hf" / "config.json", config | change)
    assert config | change != config
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 4
    assert "describes another model than the one beside it" in capsys.readouterr().err


def test_a_model_saved_by_transformers_is_imported(exported, theirs, tmp_path):
    """Fine-tuning leaves padding and truncation in tokenizer.json."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(exported.path)
    auto(TEXTS[:2], padding=True, truncation=True, max_length=9)
    auto.save_pretrained(tmp_path / "hf")
    theirs.save_pretrained(tmp_path / "hf")
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() != (exported.path / "tokenizer.json").read_bytes()
    assert call("--from", tmp_path / "hf", tmp_path / "models") == 0
    model, record = load_trained(tmp_path / "models", CPU)
    tokenizer = load_tokenizer(tmp_path / "models" / "tokenizer")
    assert record["tokenizer_sha256"] == tokenizer.sha256 and tokenizer.eot_id == exported.tokenizer.eot_id
    assert [tokenizer.encode(text) for text in TEXTS] == [exported.tokenizer.encode(text) for text in TEXTS]
    ids = draw_ids(model.config.vocab_size, 2, 40)
    assert torch.equal(model(ids), exported.model(ids))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> SimpleNamespace:
    """Save a model with transformers: bfloat16, in shards, with a Gemma-like tokenizer and three unused entries."""
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
    assert call("--from", foreign.hf, tmp_path / "models") == 0
    model, record = load_trained(tmp_path / "models", CPU)
    ids = draw_ids(model.config.vocab_size, 2, 50)
    with torch.no_grad():
        wanted = foreign.theirs(ids).logits
        assert (model(ids) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    assert (
        record["seq_len"] == model.config.max_seq_len
        and record["best"]["val_loss"] is None
        and record["eval_tokens"] == 0
    )
    assert record.keys() >= {"config", "seed", "data_sha256", "segments", "tokenizer_sha256"}
    assert record["imported"].keys() == {path.name for path in foreign.hf.glob("*.safetensors")}
    state = torch.load(tmp_path / "models" / "best_model_params.pt", weights_only=True)
    assert list(state) == list(Gemma3Model(model.config).state_dict())
    assert {weight.dtype for weight in state.values()} == {torch.float32}
    capsys.readouterr()
    options = ["--models", str(tmp_path / "models"), "--tokenizer", str(tmp_path / "models" / "tokenizer")]
    assert generate_main(["some words", "--max_new_tokens", "20", "--temperature", "2", *options]) == 0
    assert capsys.readouterr().out.startswith("some words")


def add_tokens(folder: Path) -> None:
    """Add more tokens to a tokenizer than its model has unused entries."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(folder)
    auto.add_tokens(["<one>", "<two>", "<three>", "<four>"])
    auto.save_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        (add_tokens, 3, r"vocab_size is \d+; it must be at least the tokenizer's \d+"),
        (lambda f: (f / "tokenizer.json").unlink(), 2, r"has neither meta.json .*\(missing: tokenizer.json\)"),
        (lambda f: [p.unlink() for p in f.glob("*.safetensors")], 3, "pickled weights are not read"),
        (lambda f: next(f.glob("*.safetensors")).unlink(), 4, "do not fit config.json: .*Missing key"),
        (
            lambda f: next(f.glob("*.safetensors")).write_bytes(b"\0" * 99),
            4,
            r"model-\d+-of-\d+.safetensors: .*download it again",
        ),
        (lambda f: (f / "config.json").unlink(), 4, "config.json: missing; name the folder of a model"),
        (lambda f: (f / "config.json").write_text("{"), 4, "config.json: not valid JSON .* or download it again"),
    ],
)
def test_a_folder_that_cannot_be_imported_is_refused(foreign, tmp_path, capsys, change, status, sentence):
    shutil.copytree(foreign.hf, tmp_path / "hf")
    torch.save({}, tmp_path / "hf" / "pytorch_model.bin")
    change(tmp_path / "hf")
    assert call("--from", tmp_path / "hf", tmp_path / "models") == status and not (tmp_path / "models").exists()
    assert re.search(f"^error: .*{sentence}", capsys.readouterr().err, re.MULTILINE)


def test_the_printed_size_is_that_of_all_files(exported, tmp_path, capsys):
    assert call(tmp_path / "out", *exported.options) == 0

    total = sum(map(len, contents(tmp_path / "out").values()))
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: {total:,} bytes\n"


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_model_is_loaded_in_the_numerics_of_its_training(exported, tmp_path, numerics):
    """The check of an export compares what was trained, not torch's arithmetic for all."""
    shutil.copytree(exported.folder / "models", tmp_path / "models")
    path = tmp_path / "models" / "model.json"
    write_json(path, read_json(path) | {"segments": [{"from_step": 0, "numerics": numerics}]})

    model, _, _ = load_run(tmp_path / "models", exported.folder / "tokenizer")

    assert model.numerics == numerics
