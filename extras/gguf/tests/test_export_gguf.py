"""`python src export_gguf`: what the file holds, and that its readers get our ids and our logits.

Two readers take part: the package gguf, and transformers, which loads the weights of such a file. Neither is llama.cpp:
what only llama.cpp derives from the file, such as the shape of attention, is written here as its source has it.
"""

import itertools
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import AddedToken, pre_tokenizers

from extras.gguf import vocabulary
from extras.gguf.export_gguf import main
from extras.gguf.vocabulary import describe_vocabulary
from lm.core.errors import DataError
from lm.core.files import read_json, write_json
from lm.model import kernels
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import load_tokenizer
from support import tokenizer_cases
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from support.refusal import refused
from tools.common.export import load_run


def call(*arguments) -> int:
    return main(list(map(str, arguments)))


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


@pytest.mark.parametrize(("n_layer", "divisor"), [(4, 16), (62, 8)])
def test_the_query_norm_makes_the_scale_of_llama_cpp_ours(n_layer, divisor):
    """llama.cpp divides scores by the root of head_dim, or of d_model / n_head in a model of 62 layers; here 24."""
    model = build(400, n_layer=n_layer)
    from extras.gguf.writer import llama_tensors

    tensors = dict(llama_tensors(model, "f32"))
    ours = 1 + model.layers[1].self_attn.q_norm.weight.detach().numpy()
    assert np.allclose(tensors["blk.1.attn_q_norm.weight"], ours * (divisor / 24) ** 0.5, rtol=1e-6)


def test_the_vocabulary_is_complete_and_texts_begin_with_end_of_text(run):
    entries, _ = read(run.path)

    def get(name: str):
        return entries[f"tokenizer.ggml.{name}"]

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


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_same_model_gives_the_same_bytes_and_f16_halves_the_matrices(run):
    again = run.folder / "again.gguf"
    half = run.folder / "half.gguf"
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


def add_merges(*merges: str):
    """Return a change that adds these merges, and the tokens that they make."""

    def change(rules: dict) -> None:
        vocab = rules["model"]["vocab"]
        for merge in merges:
            vocab.setdefault(merge.replace(" ", ""), len(vocab))
        rules["model"]["merges"] += [merge.split() for merge in merges]

    return change


def add_token(**settings):
    """Return a change that adds tokens to be found in texts."""
    token = {"id": 0, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return lambda rules: rules["added_tokens"].append(token | settings)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rules: rules["model"].update(ignore_merges=True), "it must be plain BPE"),
        (lambda rules: rules.update(normalizer=None), "it cuts texts otherwise"),
        (lambda rules: rules["model"]["vocab"].pop("<0x7F>"), "no token for 1 of 256 bytes"),
        (lambda rules: rules["model"]["vocab"].update(ab=900), "never merges 'a' and 'b' into its token 'ab'"),
        (add_merges("a b", "b c", "ab c", "x y", "a bc"), "other merges stand between two merges into 'abc'"),
        (add_token(content="ab", lstrip=True), "'ab' depends on the text around it"),
        (add_token(content="ab", normalized=True), "'ab' is searched in the normalized text"),
    ],
)
def test_a_vocabulary_that_llama_cpp_would_read_otherwise_is_refused(tmp_path, change, sentence):
    tokenizer = write_gemma_like(tmp_path / "tokenizer", tmp_path / "hf")
    path = tokenizer.folder / "tokenizer.json"
    rules = read_json(path)
    change(rules)
    write_json(path, rules)
    with pytest.raises(DataError, match=sentence):
        describe_vocabulary(tokenizer, tokenizer.vocab_size)


def read_encoder(path: Path) -> Callable[[str], list[int]]:
    """Return the encoder that a GGUF file describes, by the rules of llama.cpp (src/llama-vocab.cpp)."""
    entries, _ = read(path)
    tokens = entries["tokenizer.ggml.tokens"]
    types = entries["tokenizer.ggml.token_type"]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    searched = [token for token, type in zip(tokens, types, strict=True) if type == vocabulary.USER_DEFINED]
    searched.sort(key=len, reverse=True)

    if entries["tokenizer.ggml.model"] == "gpt2":
        merges = [tuple(merge.split(" ")) for merge in entries["tokenizer.ggml.merges"]]
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

        def encode_part(part: str) -> list[int]:
            return backend.encode(part).ids

    else:
        scores = entries["tokenizer.ggml.scores"]

        def encode_part(part: str) -> list[int]:
            return merge_by_score(part.replace(" ", "▁"), ids, scores)

    def encode(text: str) -> list[int]:
        found = [entries["tokenizer.ggml.bos_token_id"]]
        for part in cut_at(text, searched):
            found += [ids[part]] if part in searched else encode_part(part)
        return found

    return encode


def cut_at(text: str, searched: list[str]) -> Iterator[str]:
    """Yield the parts of a text: all occurrences of the first of `searched`, then those of the next between them."""
    if not searched:
        if text:
            yield text
        return
    first, *others = searched
    for number, part in enumerate(text.split(first)):
        if number:
            yield first
        yield from cut_at(part, others)


def merge_by_score(text: str, ids: dict[str, int], scores: list[float]) -> list[int]:
    """Encode a text: merge the two neighbours with the highest score, the leftmost if several have it, and repeat.

    A character that is not in the vocabulary is encoded as one token for each of its UTF-8 bytes.
    """
    pieces = list(text)
    while True:
        joined = [left + right for left, right in itertools.pairwise(pieces)]
        places = [place for place, piece in enumerate(joined) if piece in ids]
        if not places:
            break
        best = max(places, key=lambda place: (scores[ids[joined[place]]], -place))
        pieces[best : best + 2] = [joined[best]]
    parts = [[piece] if piece in ids else [f"<0x{byte:02X}>" for byte in piece.encode()] for piece in pieces]
    return [ids[token] for part in parts for token in part]


def has_only_old_characters(text: str) -> bool:
    """Return True if Unicode 3.2 assigns all characters of a text.

    tiktoken knows the characters of Unicode 16; llama.cpp and `tokenizers` do not know the newest of them.
    """
    return all(unicodedata.ucd_3_2_0.category(character) != "Cn" for character in text)


def test_the_vocabulary_of_the_file_gives_our_ids(run):
    encode = read_encoder(run.path)
    fuzzed = [text for text in tokenizer_cases.fuzzed_texts(2_000, seed=11) if has_only_old_characters(text)]
    added = ["see the theory\n\n\n\nand the theorythe theory", "<|endoftext|> is text"]
    for text in [*fuzzed, *tokenizer_cases.TRAINING, *added]:
        assert encode(text) == [run.tokenizer.eot_id, *run.tokenizer.encode(text)], text
    assert len(fuzzed) > 500


@pytest.mark.parametrize("every", [1, 3, 9])
def test_transformers_computes_our_logits_from_the_file(tmp_path, every):
    """Windows of 8 tokens in all layers but every nth; with 9, in all. The arithmetic of both is torch's, in float32.

    The difference is one of rounding: about 2e-6 of the largest logit was seen, 1e-4 is allowed.
    """

    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"), full_attention_every=every)
    ours, _, tokenizer = load_run(run.folder / "models", run.folder / "tokenizer")
    from extras.gguf.reader import open_gguf

    theirs = open_gguf(run.path)
    ids = torch.randint(tokenizer.vocab_size, (1, 90), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = ours(ids)[0]
        found = theirs(ids).logits[0]
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_model_of_changed_code_is_not_written(tmp_path, monkeypatch, capfd, dtype):
    """The gate is a squared ReLU; the file of before stays."""
    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"))
    before = run.path.read_bytes()
    monkeypatch.setattr(kernels, "gated_gelu", lambda gate, up: gate.relu() ** 2 * up)

    status = call(run.path, *run.options, "--dtype", dtype)

    refused(status, capfd.readouterr().err, 4, f"{run.path}: transformers computes ", "nothing was written")
    assert run.path.read_bytes() == before and not list(tmp_path.glob(".*.tmp"))


def test_matrices_that_float16_cannot_hold_are_not_written(tmp_path, capfd):
    tokenizer = write_bpe(tmp_path / "tokenizer")
    model = build(tokenizer.vocab_size)
    model.layers[0].mlp.down_proj.weight.data[0, 0] = 1e5
    write_trained(tmp_path / "models", model, tokenizer)

    status = call(
        tmp_path / "out.gguf", "--models", tmp_path / "models", "--tokenizer", tokenizer.folder, "--dtype", "f16"
    )

    sentence = "model.layers.0.mlp.down_proj.weight has a weight beyond 65,504"
    refused(status, capfd.readouterr().err, 3, sentence, "export it with --dtype f32")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("run", ["bpe"], indirect=True)
def test_the_printed_size_is_that_of_the_file(run, capfd):
    assert call(run.folder / "size.gguf", *run.options) == 0

    size = (run.folder / "size.gguf").stat().st_size
    assert capfd.readouterr().out == f"{run.folder / 'size.gguf'}: {size:,} bytes\n"
