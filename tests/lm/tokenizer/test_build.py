"""Imported vocabularies give the ids of their files, downloads are verified, and the stage explains what it refuses."""

import functools
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

import make_tokenizer
from lm.core.errors import DataError
from lm.core.files import read_json, sha256_file, write_json
from lm.tokenizer import build
from lm.tokenizer.build import write_for_generation, write_huggingface
from lm.tokenizer.byte_level import recover_merges, train_bpe
from lm.tokenizer.load import load_tokenizer
from support.mixture_cases import write_source
from support.refusal import refused
from support.tokenizer_cases import (
    TEXTS,
    TRAINING,
    VOCAB_SIZE,
    auto_ids,
    digests,
    save_tokenizer,
    write_bpe,
    write_gemma_like,
)

BPE = {"kind": "bpe", "vocab_size": VOCAB_SIZE, "pretokenizer": "gpt2"}


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("bpe"))


def files_of(folder) -> dict[str, str]:
    """Return the digests of a folder's files but for meta.json, which names the text too."""
    return {name: sha256 for name, sha256 in digests(Path(folder)).items() if name != "meta.json"}


def test_merges_are_recovered_from_ranks():
    single_bytes = [bytes([byte]) for byte in range(256)]
    tokens = [*single_bytes, b"ab", b"cd", b"abcd", b"bc", b"abc"]
    ranks = {token: rank for rank, token in enumerate(tokens)}

    merges = recover_merges(ranks)

    assert merges == [(b"a", b"b"), (b"c", b"d"), (b"ab", b"cd"), (b"b", b"c"), (b"ab", b"c")]
    ranks, merges = train_bpe([TRAINING], VOCAB_SIZE)
    assert recover_merges(ranks) == merges
    assert b"ab" in train_bpe([["ab ab"]], 300)[0]  # a pair that occurs twice


# Imports


def byte_level_backend(extra=(), merges=(), prefix_space=False) -> tokenizers.Tokenizer:
    """Return a tokenizer of single bytes, and of extra entries that merges make of them."""
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *extra]
    vocab = {entry: index for index, entry in enumerate(entries)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def write_word_level(source, bpe_folder, eos="EOS", **config):
    words = ["[UNK]", "a", "b", eos]
    vocab = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([eos, "[UNK]"])
    save_tokenizer(backend, source, unk_token="[UNK]", **config)


def write_dropout(source, bpe_folder):
    backend = tokenizers.Tokenizer.from_file(str(bpe_folder / "tokenizer.json"))
    backend.model.dropout = 0.1
    save_tokenizer(backend, source)


def write_token_of_the_configuration(source, bpe_folder):
    """An ordinary token that only the configuration has, so that transformers gives it another id."""
    token = {"content": "hello", "special": False}
    save_tokenizer(byte_level_backend(), source, eos_token="</s>", added_tokens_decoder={"300": token})


def write_prefix_space(source, bpe_folder):
    """The text `x` is the entry Ġx, as a space is added before it; only inside of a text is it the special token x."""
    backend = byte_level_backend(extra=["Ġx"], merges=[("Ġ", "x")], prefix_space=True)
    backend.add_special_tokens(["x"])
    save_tokenizer(backend, source, eos_token="x")


@pytest.fixture
def source(tmp_path) -> Path:
    """An empty folder for a tokenizer as a repository has it."""
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def out(tmp_path) -> Path:
    """An empty folder for the imported tokenizer."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (functools.partial(write_word_level, eos_token="EOS"), "'EOS'"),
        (functools.partial(write_word_level, eos="two words"), "nor an eos token"),
        (write_prefix_space, "text 'axb' the id of 'x'"),
        (write_dropout, "dropout"),
        (write_token_of_the_configuration, "text 'hello world' the ids .*, and transformers"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(bpe_folder, source, out, write, problem):
    write(source, bpe_folder)

    with pytest.raises(DataError, match=problem):
        write_huggingface(out, source)


def import_byte_level(source: Path, out: Path, **config) -> None:
    """Import a vocabulary of bytes, the end of a document and, after it, an added token that is ordinary text."""
    backend = byte_level_backend()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.add_tokens(["<tag>"])
    save_tokenizer(backend, source, eos_token="<|endoftext|>", **config)
    write_huggingface(out, source)


def test_the_ids_are_those_of_the_file_whatever_class_it_names(source, out):
    """transformers builds this class anew, with rules of its own."""
    import_byte_level(source, out, tokenizer_class="Qwen2Tokenizer")

    ids = [load_tokenizer(out).encode(text) for text in build.PROBES]

    backend = byte_level_backend()
    expected = [backend.encode(text).ids for text in build.PROBES]
    assert ids == expected
    assert auto_ids(out, list(build.PROBES)) == expected


def test_a_folder_that_transformers_would_read_otherwise_is_not_written(source, out, monkeypatch, tmp_path):
    import_byte_level(source, out)
    other_class = {"tokenizer_class": "Qwen2Tokenizer"}
    monkeypatch.setattr(build, "readable_by_all", lambda config: config | other_class)

    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"tokenizer\.json: gives the text .*, and transformers"):
        write_for_generation(tmp_path / "other", out, eot_id=256)


TURNS = ["<start_of_turn>", "<end_of_turn>"]


def save_by_transformers(source: Path, saved: Path):
    """Save a tokenizer with two more special tokens by transformers 5, with its names; return it."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(write_gemma_like(source))
    auto.add_special_tokens({"extra_special_tokens": TURNS})
    auto.save_pretrained(saved)
    config = read_json(saved / "tokenizer_config.json")
    write_json(saved / "tokenizer_config.json", config | {"tokenizer_class": "TokenizersBackend"})
    return auto


def test_readers_of_transformers_4_know_the_names_of_an_imported_tokenizer(source, out, tmp_path):
    """transformers 4.51 and 4.57 opened both folders when this was written; with the names of 5 they raised errors."""
    from transformers import AutoTokenizer

    auto = save_by_transformers(source, tmp_path / "saved")
    export = tmp_path / "export"
    export.mkdir()

    meta = write_huggingface(out, tmp_path / "saved")
    write_for_generation(export, out, meta["eot_id"])

    text = "see <tag> x"
    for folder in (out, export):
        config = read_json(folder / "tokenizer_config.json")
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
        assert config["additional_special_tokens"] == TURNS
        assert "extra_special_tokens" not in config
        again = AutoTokenizer.from_pretrained(folder)
        assert again(text).input_ids[1:] == auto(text).input_ids[1:]


def test_end_of_text_comes_before_eos(bpe_folder, tmp_path, out):
    """In a tokenizer of a repository whose eos token is not end-of-text."""
    copy = shutil.copytree(bpe_folder, tmp_path / "copy")
    write_json(copy / "tokenizer_config.json", {"eos_token": "<end of turn>"})

    meta = write_huggingface(out, copy)

    assert (meta["eot_id"], meta["vocab_size"]) == (VOCAB_SIZE - 1, VOCAB_SIZE)
    assert meta["special_tokens"]["<end of turn>"] == VOCAB_SIZE


# The stage


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with text in raw; call the fixture with a tokenizer preset to run the stage."""
    write_source(tmp_path / "raw", "mine", train=TRAINING)
    monkeypatch.chdir(tmp_path)

    def run(preset: dict, path: Path = Path("nowhere"), **changed) -> int:
        chosen = {"data": {"source": "mine"}, "tokenizer": {"name": "t", "path": str(path)}}
        train = {"split": "train", "start_char": 0, "num_chars": None} | changed
        write_json("params.yaml", chosen)
        write_json("sources.yaml", {"sources": {"mine": {"train": train}}})
        write_json("presets.yaml", {"tokenizers": {"t": preset}})
        return make_tokenizer.main(["--raw", "raw", "--tokenizer", "data/tokenizer"])

    return run


def test_the_stage_trains_on_the_training_slice(project, bpe_folder):
    assert project(BPE) == 0

    assert files_of("data/tokenizer") == files_of(bpe_folder)
    assert read_json("data/tokenizer/meta.json")["text"] == {
        "name": "mine",
        "text_sha256": sha256_file("raw/train.parquet"),
        "slice": {"split": "train", "start_char": 0, "num_chars": None},
    }
    assert project(BPE, num_chars=5000) == 0
    assert files_of("data/tokenizer") != files_of(bpe_folder)


def test_a_folder_of_this_project_is_copied_and_one_that_transformers_saved_is_converted(project, bpe_folder):
    saved = shutil.copytree(bpe_folder, Path("model/tokenizer"))

    assert project({"kind": "folder"}, Path("model")) == 0
    assert digests(Path("data/tokenizer")) == digests(bpe_folder)

    (saved / "meta.json").unlink()
    assert project({"kind": "folder"}, saved) == 0
    converted = load_tokenizer("data/tokenizer")
    assert converted.meta["kind"] == "huggingface"
    expected, _ = load_tokenizer(bpe_folder).encode_documents(TEXTS[:2000])
    assert converted.encode_documents(TEXTS[:2000])[0].tolist() == expected.tolist()


def name_outside(folder: Path) -> None:
    """Name a file outside of the folder in its meta.json."""
    meta = read_json(folder / "meta.json")
    meta["files"]["../x"] = "0" * 64
    write_json(folder / "meta.json", meta)


@pytest.mark.parametrize(
    ("change", "code", "parts"),
    [
        (shutil.rmtree, 2, ["meta.json", "tokenizer.json", "name the folder"]),
        (lambda folder: (folder / "ranks.tiktoken").write_text("YQ== 0"), 4, ["ranks.tiktoken", "sha256"]),
        (name_outside, 4, ["'../x'", "must be a path inside"]),
    ],
)
def test_a_damaged_folder_is_refused(project, bpe_folder, capsys, change, code, parts):
    change(shutil.copytree(bpe_folder, Path("mine")))

    status = project({"kind": "folder"}, Path("mine"))

    refused(status, capsys.readouterr().err, code, "mine", *parts)
    assert not Path("data/tokenizer").exists()
