"""`python src export_gguf`: what the file holds, and that llama.cpp gives our ids and our logits."""

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import AddedToken

from extras.gguf import vocabulary
from extras.gguf.export_gguf import PACKAGE, main
from extras.gguf.vocabulary import describe_vocabulary
from lm.core.errors import DataError
from lm.core.files import read_json, write_json
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import load_tokenizer
from support import ROOT, tokenizer_cases
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from support.refusal import refused

needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="gguf is not installed: requirements/gguf.txt"
)
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama_cpp is not installed: requirements/gguf.txt"
)


# Letters and digits that are new in Unicode 16, which tiktoken has and llama.cpp has not.
NEW_CHARACTERS = """
1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D40-10D65 10D6F-10D85 10EC2-10EC4 11380-11389 1138B 1138E 11390-113B5 113B7
113D1 113D3 116D0-116E3 11BC0-11BE0 11BF0-11BF9 13460-143FA 16100-1611D 16130-16139 16D40-16D6C 16D70-16D79 18CFF
1CCF0-1CCF9 1E5D0-1E5ED 1E5F0-1E5FA
"""
NEW = re.compile(f"[{''.join(re.sub('[0-9A-F]+', lambda code: chr(int(code[0], 16)), NEW_CHARACTERS).split())}]")


def call(*arguments) -> int:
    return main(list(map(str, arguments)))


def test_without_gguf_the_pinned_package_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "extras.gguf.writer", raising=False)
    error = "gguf is not installed; run `python -m pip install gguf=="
    refused(call(tmp_path / "new.gguf"), capsys.readouterr().err, 5, error)
    pinned = (ROOT / "requirements/gguf.txt").read_text().splitlines()
    assert PACKAGE in pinned


def load_gpt2(folder: Path):
    folder.mkdir()
    return load_tokenizer(tokenizer_cases.write_gpt2(folder))


def write_hub_gpt2(folder: Path):
    """A byte-level tokenizer as a repository has it, with an added token that is ordinary text."""
    write_bpe(folder.parent / "own")
    source = folder.parent / "hf"
    source.mkdir()
    backend = tokenizers.Tokenizer.from_file(str(folder.parent / "own" / "tokenizer.json"))
    backend.add_tokens([AddedToken("the theory", normalized=False), AddedToken("\n\n\n", normalized=False)])
    tokenizer_cases.save_tokenizer(backend, source, tokenizer_class="PreTrainedTokenizerFast")
    folder.mkdir()
    write_huggingface(folder, source)
    return load_tokenizer(folder)


TOKENIZERS = {
    "bpe": write_bpe, "gpt2": load_gpt2, "hub_gpt2": write_hub_gpt2,
    "gemma_like": lambda folder: write_gemma_like(folder, folder.parent / "hf"),
}  # fmt: skip


def make_run(folder: Path, tokenizer, **changes) -> SimpleNamespace:
    """Make a trained model of 5 embeddings more than the tokenizer has ids, and export it."""
    model = build(tokenizer.vocab_size + 5, **changes)
    write_trained(folder / "models", model, tokenizer)
    options = ["--models", folder / "models", "--tokenizer", folder / "tokenizer"]
    assert call(folder / "out.gguf", *options) == 0
    return SimpleNamespace(folder=folder, path=folder / "out.gguf", model=model, tokenizer=tokenizer, options=options)


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request, tmp_path_factory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp(request.param)
    return make_run(folder, TOKENIZERS[request.param](folder / "tokenizer"))


def read(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the entries and the tensors of a file."""
    import gguf

    reader = gguf.GGUFReader(path)
    entries = {name: field.contents() for name, field in reader.fields.items()}
    return entries, {tensor.name: tensor.data for tensor in reader.tensors}


@needs_gguf
@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_shape_is_under_the_names_of_llama_cpp(run):
    entries, _ = read(run.path)
    found = {name.removeprefix("gemma3."): value for name, value in entries.items() if name.startswith("gemma3.")}
    assert found.pop("attention.sliding_window_pattern") == [True, True, False, True]
    assert found == pytest.approx({
        "context_length": 96, "embedding_length": 32, "block_count": 4, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
        "attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 8,
        "rope.freq_base": 500_000, "rope.freq_base_swa": 10_000, "rope.local.freq_base": 10_000,
    })  # fmt: skip
    assert (entries["general.architecture"], entries["general.file_type"]) == ("gemma3", 0)


@needs_gguf
@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_weights_are_ours_and_norms_have_the_one_that_gemma_adds(run):
    _, tensors = read(run.path)
    ours = {name: weight.numpy() for name, weight in run.model.state_dict().items()}
    assert len(tensors) == len(ours) and {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    matrices = {
        "token_embd": "embed_tokens", "blk.1.attn_q": "layers.1.self_attn.q_proj",
        "blk.3.attn_output": "layers.3.self_attn.o_proj", "blk.0.ffn_down": "layers.0.mlp.down_proj",
    }  # fmt: skip
    for theirs, name in matrices.items():
        assert np.array_equal(tensors[f"{theirs}.weight"], ours[f"{name}.weight"])
    norms = {
        "output_norm": "norm", "blk.2.attn_norm": "layers.2.input_layernorm",
        "blk.2.post_attention_norm": "layers.2.post_attention_layernorm",
        "blk.0.ffn_norm": "layers.0.pre_feedforward_layernorm",
        "blk.0.post_ffw_norm": "layers.0.post_feedforward_layernorm", "blk.3.attn_k_norm": "layers.3.self_attn.k_norm",
    }  # fmt: skip
    for theirs, name in norms.items():
        assert np.array_equal(tensors[f"{theirs}.weight"], 1 + ours[f"{name}.weight"])


@needs_gguf
@pytest.mark.parametrize(("n_layer", "divisor"), [(4, 16), (62, 8)])
def test_the_query_norm_makes_the_scale_of_llama_cpp_ours(tmp_path, n_layer, divisor):
    """llama.cpp divides scores by the root of head_dim, or of d_model / n_head in a model of 62 layers; here 24."""
    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"), n_layer=n_layer)
    _, tensors = read(run.path)
    ours = 1 + run.model.layers[1].self_attn.q_norm.weight.detach().numpy()
    assert np.allclose(tensors["blk.1.attn_q_norm.weight"], ours * (divisor / 24) ** 0.5, rtol=1e-6)


@needs_gguf
def test_the_vocabulary_is_complete_and_texts_begin_with_end_of_text(run):
    entries, _ = read(run.path)
    get = lambda name: entries[f"tokenizer.ggml.{name}"]  # noqa: E731
    kind = "llama" if "gemma" in run.folder.name else "gpt2"
    assert (get("model"), get("pre")) == (kind, "default" if kind == "llama" else "gpt-2")
    assert len(get("tokens")) == len(get("token_type")) == len(set(get("tokens"))) == run.tokenizer.vocab_size + 5
    backend = tokenizers.Tokenizer.from_file(str(run.tokenizer.folder / "tokenizer.json"))
    assert [token for token in get("tokens") if token[:4] != "[PAD"] == [
        backend.id_to_token(token_id) for token_id in range(run.tokenizer.vocab_size)
    ]
    assert get("token_type")[-5:] == [vocabulary.UNUSED] * 5
    assert {get(f"{name}_token_id") for name in ("bos", "eos", "padding")} == {run.tokenizer.eot_id}
    assert get("token_type")[run.tokenizer.eot_id] == vocabulary.CONTROL
    assert get("add_bos_token") and not get("add_eos_token") and not get("add_space_prefix")
    assert ("tokenizer.ggml.scores" in entries, "tokenizer.ggml.merges" in entries) == (kind == "llama", kind == "gpt2")


@needs_gguf
@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_same_model_gives_the_same_bytes_and_f16_halves_the_matrices(run):
    again, half = run.folder / "again.gguf", run.folder / "half.gguf"
    assert call(again, *run.options) == call(half, *run.options, "--dtype", "f16") == 0
    assert again.read_bytes() == run.path.read_bytes()
    entries, tensors = read(half)
    assert {tensor.ndim: tensor.dtype for tensor in tensors.values()} == {1: np.float32, 2: np.float16}
    assert np.array_equal(tensors["token_embd.weight"], run.model.embed_tokens.weight.detach().half().numpy())
    assert entries["general.file_type"] == 1


def test_only_a_gguf_file_is_replaced(tmp_path, capfd):
    other = tmp_path / "notes.txt"
    for path in (other, tmp_path):
        other.write_text("mine")
        refused(call(path), capfd.readouterr().err, 2, f"{path}: exists and is not a GGUF file")
    assert other.read_text() == "mine"


def change_rules(folder: Path, change) -> None:
    """Apply `change` to the content of a folder's tokenizer.json, as if it had been made so."""
    path = folder / "tokenizer.json"
    rules = read_json(path)
    change(rules)
    write_json(path, rules)


@pytest.fixture
def gemma_like(tmp_path):
    return write_gemma_like(tmp_path / "tokenizer", tmp_path / "hf")


@pytest.mark.parametrize("pretokenizer", ["cl100k", "o200k"])
def test_a_pretokenizer_that_llama_cpp_does_not_have_is_refused(tmp_path, pretokenizer):
    tokenizer_cases.write_bpe(tmp_path, pretokenizer)
    with pytest.raises(DataError, match="it cuts texts otherwise, needed: the pre-tokenizer gpt2"):
        describe_vocabulary(load_tokenizer(tmp_path), 1200)


def test_pairs_that_only_llama_cpp_would_merge_are_refused(tmp_path, gemma_like):
    change_rules(gemma_like.folder, lambda rules: rules["model"]["vocab"].update({"ab": len(rules["model"]["vocab"])}))
    with pytest.raises(DataError, match="never merges 'a' and 'b' into its token 'ab'"):
        describe_vocabulary(gemma_like, gemma_like.vocab_size)


def test_a_token_whose_merges_are_far_apart_has_no_score(gemma_like):
    def add(rules):
        rules["model"]["vocab"] |= {"ab": 900, "bc": 901, "abc": 902, "xy": 903}
        rules["model"]["merges"] += [["a", "b"], ["b", "c"], ["ab", "c"], ["x", "y"], ["a", "bc"]]

    change_rules(gemma_like.folder, add)
    with pytest.raises(DataError, match="other merges stand between two merges into 'abc'"):
        describe_vocabulary(gemma_like, gemma_like.vocab_size)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([AddedToken("ab", normalized=False), AddedToken("bcd", normalized=False)], "'ab' and 'bcd' can overlap"),
        ([AddedToken("ab", normalized=False, lstrip=True)], "'ab' depends on the text around it"),
        ([AddedToken("ab", normalized=True)], "'ab' is searched in the normalized text"),
    ],
)
def test_added_tokens_that_llama_cpp_finds_elsewhere_are_refused(gemma_like, names, sentence):
    path = str(gemma_like.folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(path)
    backend.add_tokens(names)
    backend.save(path)
    with pytest.raises(DataError, match=sentence):
        describe_vocabulary(gemma_like, gemma_like.vocab_size)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rules: rules["model"].update(ignore_merges=True), "needed: plain BPE"),
        (lambda rules: rules.update(normalizer=None), "it cuts texts otherwise"),
        (lambda rules: rules["model"]["vocab"].pop("<0x7F>"), "no token for 1 of 256 bytes"),
    ],
)
def test_other_rules_are_refused_in_one_sentence(gemma_like, change, sentence):
    change_rules(gemma_like.folder, change)
    with pytest.raises(DataError, match=sentence):
        describe_vocabulary(gemma_like, gemma_like.vocab_size)


def open_llama(run: SimpleNamespace):
    """Return the file in llama.cpp, with a cache in float32."""
    import llama_cpp

    f32 = llama_cpp.GGML_TYPE_F32
    return llama_cpp.Llama(
        str(run.path), n_ctx=run.model.config.max_seq_len, logits_all=True, type_k=f32, type_v=f32,
        flash_attn=False, n_gpu_layers=0, verbose=False,
    )  # fmt: skip


@pytest.mark.slow
@needs_gguf
@needs_llama_cpp
def test_llama_cpp_gives_our_ids_of_100_000_texts(run):
    llama = open_llama(run)
    texts = [*tokenizer_cases.fuzzed_texts(102_000, seed=11), *tokenizer_cases.TRAINING, "<|endoftext|> is text"]
    known = [text for text in texts if not NEW.search(text)]
    for text in known:
        ids = llama.tokenize(text.encode(), add_bos=True, special=False)
        assert ids == [run.tokenizer.eot_id, *run.tokenizer.encode(text)], text
    assert len(known) >= 100_000


@pytest.mark.slow
@needs_gguf
@needs_llama_cpp
@pytest.mark.parametrize("every", [1, 3, 9])
def test_llama_cpp_gives_our_logits(tmp_path, every):
    """Windows of 8 tokens in all layers but every nth; with 9, in all. Forty tokens at once, the others one by one."""
    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"), full_attention_every=every)
    llama = open_llama(run)
    ids = torch.randint(run.tokenizer.vocab_size, (1, 90), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = run.model(ids)[0].numpy()
    for part in ids[0].tensor_split([40, *range(41, 90)]):
        llama.eval(part.tolist())
    assert np.abs(llama.scores[:90] - ours).max() < 1e-3 * np.abs(ours).max()
