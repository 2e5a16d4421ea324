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
from tools.export_hf.hugging_face import load_run


def call(*arguments) -> int:
    return main([str(argument) for argument in arguments])


def write_hub_gpt2(folder: Path):
    """A byte-level tokenizer as a repository has it, with an added token that is ordinary text."""
    own = folder.parent / "own"
    write_bpe(own)
    backend = tokenizers.Tokenizer.from_file(str(own / "tokenizer.json"))
    added = ["the theory", "\n\n\n"]
    backend.add_tokens([AddedToken(token, normalized=False) for token in added])
    source = folder.parent / "hf"
    source.mkdir()
    tokenizer_cases.save_tokenizer(backend, source, tokenizer_class="PreTrainedTokenizerFast")
    folder.mkdir()
    write_huggingface(folder, source)
    return load_tokenizer(folder)


TOKENIZERS = {
    "bpe": write_bpe,
    "hub_gpt2": write_hub_gpt2,
    "gemma_like": lambda folder: write_gemma_like(folder, folder.parent / "hf"),
}
NUM_SPARE = 5  # embeddings that the model has more than the tokenizer has ids


def make_run(folder: Path, tokenizer, **changes) -> SimpleNamespace:
    """Make a trained model and export it."""
    model = build(tokenizer.vocab_size + NUM_SPARE, **changes)
    write_trained(folder / "models", model, tokenizer)
    path = folder / "out.gguf"
    options = ["--models", folder / "models", "--tokenizer", folder / "tokenizer"]
    assert call(path, *options) == 0
    entries, tensors = read(path)
    return SimpleNamespace(
        folder=folder,
        path=path,
        model=model,
        tokenizer=tokenizer,
        options=options,
        entries=entries,
        tensors=tensors,
    )


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request, tmp_path_factory) -> SimpleNamespace:
    """A run with each kind of tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    write_tokenizer = TOKENIZERS[request.param]
    return make_run(folder, write_tokenizer(folder / "tokenizer"))


with_bpe = pytest.mark.parametrize("run", ["bpe"], indirect=True)


def read(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Return the entries and the tensors of a file."""
    import gguf

    reader = gguf.GGUFReader(path)
    entries = {name: field.contents() for name, field in reader.fields.items()}
    return entries, {tensor.name: tensor.data for tensor in reader.tensors}


@with_bpe
def test_the_shape_is_under_the_names_of_llama_cpp(run):
    assert run.entries["general.architecture"] == "gemma3"
    prefix = "gemma3."
    shape = {name.removeprefix(prefix): value for name, value in run.entries.items() if name.startswith(prefix)}
    assert shape.pop("attention.sliding_window_pattern") == [True, True, False, True]
    assert shape == pytest.approx(
        {
            "context_length": 96,
            "embedding_length": 32,
            "block_count": 4,
            "feed_forward_length": 64,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 8,
            "rope.freq_base": 500_000,
            "rope.freq_base_swa": 10_000,
            "rope.local.freq_base": 10_000,
        }
    )


@with_bpe
def test_matrices_alone_may_be_written_in_f16(run):
    half = run.folder / "half.gguf"

    assert call(half, *run.options, "--dtype", "f16") == 0

    entries, tensors = read(half)
    assert entries["general.file_type"] == 1
    assert {tensor.ndim: tensor.dtype for tensor in tensors.values()} == {1: np.float32, 2: np.float16}
    ours = run.model.embed_tokens.weight.detach().numpy()
    assert np.array_equal(tensors["token_embd.weight"], ours.astype(np.float16))


@pytest.mark.parametrize(("n_layer", "divisor"), [(4, 16), (62, 8)])
def test_the_query_norm_makes_the_scale_of_llama_cpp_ours(n_layer, divisor):
    """llama.cpp divides scores by the root of head_dim, or of d_model / n_head in a model of 62 layers; here 24."""
    from extras.gguf.writer import llama_tensors

    model = build(400, n_layer=n_layer)

    tensors = dict(llama_tensors(model, "f32"))

    ours = 1 + model.layers[1].self_attn.q_norm.weight.detach().numpy()
    expected = ours * (divisor / 24) ** 0.5
    assert np.allclose(tensors["blk.1.attn_q_norm.weight"], expected, rtol=1e-6)


def test_the_vocabulary_is_complete_and_texts_begin_with_end_of_text(run):
    prefix = "tokenizer.ggml."
    entries = {name.removeprefix(prefix): value for name, value in run.entries.items() if name.startswith(prefix)}

    kind = ("llama", "default") if run.folder.name.startswith("gemma") else ("gpt2", "gpt-2")
    assert (entries["model"], entries["pre"]) == kind

    tokens = entries["tokens"]
    assert len(tokens) == len(set(tokens)) == run.tokenizer.vocab_size + NUM_SPARE
    assert entries["token_type"][-NUM_SPARE:] == [vocabulary.UNUSED] * NUM_SPARE

    eot_id = run.tokenizer.eot_id
    assert {entries[f"{name}_token_id"] for name in ("bos", "eos", "padding")} == {eot_id}
    assert entries["token_type"][eot_id] == vocabulary.CONTROL
    added = [entries[name] for name in ("add_bos_token", "add_eos_token", "add_space_prefix")]
    assert added == [True, False, False]


def add_merges(rules: dict) -> None:
    """Add merges in an order that scores cannot tell, and the tokens that they make."""
    vocab = rules["model"]["vocab"]
    for merge in ("a b", "b c", "ab c", "x y", "a bc"):
        vocab.setdefault(merge.replace(" ", ""), len(vocab))
        rules["model"]["merges"].append(merge.split())


def add_token(rules: dict) -> None:
    """Add a token that takes the spaces before it."""
    token = {"id": 0, "content": "ab", "single_word": False, "rstrip": False, "normalized": False, "special": False}
    rules["added_tokens"].append(token | {"lstrip": True})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rules: rules.update(normalizer=None), "cuts texts otherwise"),
        (lambda rules: rules["model"]["vocab"].pop("<0x7F>"), "1 of 256 bytes"),
        (lambda rules: rules["model"]["vocab"].update(ab=900), "never merges 'a' and 'b'"),
        (add_merges, "between two merges into 'abc'"),
        (add_token, "'ab' depends on the text around it"),
    ],
    ids=["normalizer", "bytes", "no merge", "order of merges", "added token"],
)
def test_a_vocabulary_that_llama_cpp_would_read_otherwise_is_refused(tmp_path, change, sentence):
    tokenizer = write_gemma_like(tmp_path / "tokenizer", tmp_path / "hf")
    path = tokenizer.folder / "tokenizer.json"
    rules = read_json(path)
    change(rules)
    write_json(path, rules)

    with pytest.raises(DataError, match=sentence):
        describe_vocabulary(tokenizer, tokenizer.vocab_size)


def encoder_of(entries: dict) -> Callable[[str], list[int]]:
    """Return the encoder that a GGUF file describes, by the rules of llama.cpp (src/llama-vocab.cpp)."""
    tokens = entries["tokenizer.ggml.tokens"]
    types = entries["tokenizer.ggml.token_type"]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    searched = [token for token in tokens if types[ids[token]] == vocabulary.USER_DEFINED]
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
            if part in searched:
                found.append(ids[part])
            else:
                found += encode_part(part)
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

    tokens = []
    for piece in pieces:
        if piece in ids:
            tokens.append(piece)
        else:
            tokens += [f"<0x{byte:02X}>" for byte in piece.encode()]
    return [ids[token] for token in tokens]


def has_only_old_characters(text: str) -> bool:
    """Return True if Unicode 3.2 assigns all characters of a text.

    tiktoken knows the characters of Unicode 16; llama.cpp and `tokenizers` do not know the newest of them.
    """
    return all(unicodedata.ucd_3_2_0.category(character) != "Cn" for character in text)


def test_the_vocabulary_of_the_file_gives_our_ids(run):
    texts = [*tokenizer_cases.fuzzed_texts(1_000, seed=11), *tokenizer_cases.TRAINING]
    texts = [text for text in texts if has_only_old_characters(text)]
    assert len(texts) > 400
    texts += ["see the theory\n\n\n\nand the theorythe theory", "<|endoftext|> is text"]

    encode = encoder_of(run.entries)

    for text in texts:
        assert encode(text) == [run.tokenizer.eot_id, *run.tokenizer.encode(text)]


@pytest.mark.parametrize("every", [3, 9])
def test_transformers_computes_our_logits_from_the_file(tmp_path, every):
    """Windows of 8 tokens in all layers but every nth; with 9, in all. The arithmetic of both is torch's, in float32.

    The difference is one of rounding: about 2e-6 of the largest logit was seen, 1e-4 is allowed.
    """
    from extras.gguf.reader import open_gguf

    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"), full_attention_every=every)
    ours, _, tokenizer = load_run(run.folder / "models", run.folder / "tokenizer")
    theirs = open_gguf(run.path)
    ids = torch.randint(tokenizer.vocab_size, (1, 90), generator=torch.Generator().manual_seed(0))

    with torch.no_grad():
        our_logits = ours(ids)[0]
        their_logits = theirs(ids).logits[0]

    difference = (their_logits - our_logits).abs().max()
    assert difference < 1e-4 * our_logits.abs().max()


def test_a_model_of_changed_code_is_not_written(tmp_path, monkeypatch, capfd):
    """The gate is a squared ReLU; the file of before stays."""
    run = make_run(tmp_path, write_bpe(tmp_path / "tokenizer"))
    before = run.path.read_bytes()
    monkeypatch.setattr(kernels, "gated_gelu", lambda gate, up: gate.relu() ** 2 * up)

    status = call(run.path, *run.options)

    refused(status, capfd.readouterr().err, 4, str(run.path), "nothing was written")
    assert run.path.read_bytes() == before
