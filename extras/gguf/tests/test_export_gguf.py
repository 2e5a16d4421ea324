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
from tokenizers import AddedToken, pre_tokenizers

from extras.gguf import vocabulary
from extras.gguf.export_gguf import main
from extras.gguf.vocabulary import describe_vocabulary
from lm.core.errors import DataError
from lm.core.files import read_json, write_json
from lm.model import kernels
from lm.tokenizer.build import write_huggingface
from lm.tokenizer.load import Tokenizer, load_tokenizer
from support import tokenizer_cases
from support.model_cases import build, write_bpe, write_gemma_like, write_trained
from support.refusal import refused


def write_hub_gpt2(folder: Path) -> Tokenizer:
    """A byte-level tokenizer as a repository has it, with added tokens that are ordinary text."""
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
    "gpt2": write_hub_gpt2,
    "llama": lambda folder: write_gemma_like(folder, folder.parent / "hf"),
}
OPTIONS = {"gpt2": [], "llama": ["--dtype", "f16"]}
NUM_SPARE = 5  # embeddings that the model has more than the tokenizer has ids


@pytest.fixture(scope="module", params=TOKENIZERS)
def run(request, tmp_path_factory) -> SimpleNamespace:
    """A trained model with each kind of tokenizer, and what its file holds."""
    import gguf

    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = TOKENIZERS[request.param](folder / "tokenizer")
    model = build(tokenizer.vocab_size + NUM_SPARE)
    write_trained(folder / "models", model, tokenizer)
    path = folder / "out.gguf"
    arguments = [str(path), "--models", str(folder / "models"), "--tokenizer", str(tokenizer.folder)]
    arguments += OPTIONS[request.param]
    assert main(arguments) == 0
    reader = gguf.GGUFReader(path)
    return SimpleNamespace(
        kind=request.param,
        path=path,
        arguments=arguments,
        tokenizer=tokenizer,
        entries={name: field.contents() for name, field in reader.fields.items()},
        tensors={tensor.name: tensor.data for tensor in reader.tensors},
    )


def test_matrices_alone_are_in_f16(run):
    dtypes = {tensor.ndim: tensor.dtype for tensor in run.tensors.values()}
    assert dtypes == {1: np.float32, 2: np.float16 if OPTIONS[run.kind] else np.float32}


def test_the_query_norm_makes_the_scale_of_llama_cpp_ours():
    """llama.cpp divides scores by the root of head_dim, 16; here the root of 24 divides them."""
    from extras.gguf.writer import llama_tensors

    model = build(400)

    tensors = dict(llama_tensors(model, "f32"))

    ours = 1 + model.layers[1].self_attn.q_norm.weight.detach().numpy()
    expected = ours * (16 / 24) ** 0.5
    assert np.allclose(tensors["blk.1.attn_q_norm.weight"], expected, rtol=1e-6)


def test_the_entries_that_readers_in_python_ignore_are_those_of_llama_cpp(run):
    entries = run.entries
    assert entries["gemma3.attention.value_length"] == 16
    assert entries["gemma3.rope.local.freq_base"] == 10_000

    prefix = "tokenizer.ggml."
    assert entries[f"{prefix}model"] == run.kind
    eot_id = run.tokenizer.eot_id
    types = entries[f"{prefix}token_type"]
    assert types[eot_id] == vocabulary.CONTROL
    assert types[-NUM_SPARE:] == [vocabulary.UNUSED] * NUM_SPARE
    assert len(set(entries[f"{prefix}tokens"])) == len(types) == run.tokenizer.vocab_size + NUM_SPARE
    assert {entries[f"{prefix}{name}_token_id"] for name in ("bos", "eos", "padding")} == {eot_id}
    added = [entries[f"{prefix}add_{name}"] for name in ("bos_token", "eos_token", "space_prefix")]
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
        (lambda rules: rules.update(normalizer=None), "splits texts differently"),
        (lambda rules: rules["model"]["vocab"].update(ab=900), "never merges 'a' and 'b'"),
        (add_merges, "between two merges into 'abc'"),
        (add_token, "'ab' depends on the text around it"),
    ],
    ids=["normalizer", "no merge", "order of merges", "added token"],
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
    texts += ["see the theory\n\n\n\nand the theorythe theory", "<|endoftext|> is text"]

    encode = encoder_of(run.entries)

    for text in texts:
        assert encode(text) == [run.tokenizer.eot_id, *run.tokenizer.encode(text)]


def test_a_model_of_changed_code_is_not_written(run, monkeypatch, capfd):
    """The gate is a squared ReLU; the file of before stays."""
    before = run.path.read_bytes()
    monkeypatch.setattr(kernels, "gated_gelu", lambda gate, up: gate.relu() ** 2 * up)

    status = main(run.arguments)

    refused(status, capfd.readouterr().err, 4, str(run.path), "nothing was written")
    assert run.path.read_bytes() == before
