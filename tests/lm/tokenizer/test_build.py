"""Vocabularies are the same on every machine, downloads are verified, and the stage explains what it refuses."""

import functools
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import make_tokenizer
from lm.core.errors import DataError, IntegrityError
from lm.core.files import read_json, sha256_file, write_json
from lm.tokenizer import build
from lm.tokenizer.build import write_for_generation, write_huggingface
from lm.tokenizer.byte_level import cut_long_words, recover_merges, train_bpe
from lm.tokenizer.load import load_tokenizer
from lm.tokenizer.pretokenize import PATTERN
from support import ROOT
from support.mixture_cases import write_source
from support.tokenizer_cases import TEXTS, TRAINING, VOCAB_SIZE, digests, save_tokenizer, write_bpe, write_gemma_like

BPE = {"kind": "bpe", "vocab_size": VOCAB_SIZE, "pretokenizer": "gpt2"}


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("bpe"))


def test_trained_bpe_gives_the_ids_of_tokenizers(bpe_folder):
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - 1, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(TRAINING, trainer)
    expected = [encoding.ids for encoding in trained.encode_batch_fast(TEXTS[:5000])]

    tokenizer = load_tokenizer(bpe_folder)

    assert [tokenizer.encode(text) for text in TEXTS[:5000]] == expected
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert tokenizer.eot_id == VOCAB_SIZE - 1
    written = json.loads((bpe_folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert written["model"]["merges"] == json.loads(trained.to_str())["model"]["merges"]


def files_of(folder):
    """The digests of a folder's files but for meta.json, which names the text too."""
    return {name: sha256 for name, sha256 in digests(Path(folder)).items() if name != "meta.json"}


def test_training_is_deterministic(bpe_folder, tmp_path):
    script = (
        "import pickle, sys; from pathlib import Path\n"
        "from lm.tokenizer.build import write_trained_bpe\n"
        "texts = pickle.load(sys.stdin.buffer); folder = Path(sys.argv[1]); folder.mkdir()\n"
        f"write_trained_bpe(folder, [texts], {VOCAB_SIZE})\n"
    )
    for threads in ("1", "3"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": threads}
        environment |= {"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": str(threads == "3").lower()}
        command = [sys.executable, "-c", script, str(tmp_path / threads)]
        subprocess.run(command, input=pickle.dumps(TRAINING), env=environment, check=True)
        assert files_of(tmp_path / threads) == files_of(bpe_folder)


def test_merges_are_recovered_from_ranks():
    tokens = [*(bytes([byte]) for byte in range(256)), b"ab", b"cd", b"abcd", b"bc", b"abc"]
    merges = recover_merges({token: rank for rank, token in enumerate(tokens)})
    assert merges == [(b"a", b"b"), (b"c", b"d"), (b"ab", b"cd"), (b"b", b"c"), (b"ab", b"c")]
    with pytest.raises(AssertionError, match="is not a merge of lower ranks"):
        recover_merges({token: rank for rank, token in enumerate([b"a", b"b", b"aba", b"ab"])})
    ranks, merges = train_bpe([TRAINING], VOCAB_SIZE)
    assert recover_merges(ranks) == merges


def test_a_pair_that_occurs_twice_is_merged():
    assert b"ab" in train_bpe([["ab ab"]], 300)[0]
    assert b"ab" in train_bpe([["ab"], ["ab"]], 300)[0], "in two batches"
    assert b"ab" not in train_bpe([["ab"]], 300)[0]


def test_only_words_too_long_for_the_trainer_are_cut():
    longest = "é" * 1000
    for text in ("", "short words", longest, f"{longest} {longest}", " " * 1000 + "x"):
        assert cut_long_words(text) == [text]
    text = f"{longest}{longest}é x" + "\n" * 2000
    assert cut_long_words(text) == [longest, longest, "é x" + "\n" * 1000, "\n" * 1000]


def write_word_level(source, bpe_folder, eos="EOS", **config):
    vocab = {word: index for index, word in enumerate(["[UNK]", "a", "b", eos])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([eos, "[UNK]"])
    save_tokenizer(backend, source, unk_token="[UNK]", **config)


def write_byte_level_with_eos(source, bpe_folder, eos):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    save_tokenizer(backend, source, eos_token=eos)


def write_dropout(source, bpe_folder):
    backend = tokenizers.Tokenizer.from_file(str(bpe_folder / "tokenizer.json"))
    backend.model.dropout = 0.1
    save_tokenizer(backend, source)


def write_slow(source, bpe_folder):
    write_json(source / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})


def write_prefix_space(source, bpe_folder):
    """The text `x` is the entry Ġx, as a space is added before it; only inside of a text is it the special token x."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġx"]
    vocab = {letter: index for index, letter in enumerate(letters)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("Ġ", "x")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["x"])
    save_tokenizer(backend, source, eos_token="x")


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (functools.partial(write_word_level, eos_token="EOS"), "'EOS'"),
        (functools.partial(write_word_level, eos="two words"), "nor an eos token"),
        (functools.partial(write_byte_level_with_eos, eos="Ġ"), r"gives the text ' ' the id of 'Ġ', which must not"),
        (write_prefix_space, "gives the text 'axb' the id of 'x', which must not come from a document"),
        (write_dropout, "dropout"),
        (write_slow, "ByT5Tokenizer is not a fast"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(bpe_folder, tmp_path, write, problem):
    for name in ("source", "out"):
        (tmp_path / name).mkdir()
    write(tmp_path / "source", bpe_folder)
    with pytest.raises(DataError, match=problem):
        write_huggingface(tmp_path / "out", tmp_path / "source")


def import_byte_level(folder: Path, **config) -> Path:
    """Import a vocabulary of bytes, the end of a document and, after it, an added token that is ordinary text."""
    for name in ("source", "out"):
        (folder / name).mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.add_tokens(["<tag>"])
    save_tokenizer(backend, folder / "source", eos_token="<|endoftext|>", **config)
    write_huggingface(folder / "out", folder / "source")
    return folder / "out"


def test_an_ordinary_token_that_was_added_last_counts_as_an_entry(tmp_path):
    tokenizer = load_tokenizer(import_byte_level(tmp_path))
    assert (tokenizer.eot_id, tokenizer.vocab_size) == (256, 258)
    assert tokenizer.encode_documents(["<tag>"])[0].tolist() == [257, 256]


def test_several_chat_templates_are_left_out(tmp_path):
    """They would be files in a folder, of which meta.json has no hash."""
    templates = [{"name": name, "template": "{{ messages }}"} for name in ("default", "tool_use")]
    out = import_byte_level(tmp_path, chat_template=templates)
    assert load_tokenizer(out).encode("ab") == [ord("a") - 33, ord("b") - 33]
    assert all(path.is_file() for path in out.iterdir())


def test_transformers_decodes_spaces_as_they_were(bpe_folder):
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(bpe_folder)
    text = "do n't , he said . Yes !"
    assert auto.decode(load_tokenizer(bpe_folder).encode(text)) == text
    assert auto.clean_up_tokenization_spaces is False


def test_an_import_does_not_depend_on_the_path(bpe_folder, tmp_path):
    for place in ("here", "there"):
        source = shutil.copytree(bpe_folder, tmp_path / place)
        (tmp_path / f"{place}.out").mkdir()
        write_huggingface(tmp_path / f"{place}.out", source, repo="owner/name")
    assert digests(tmp_path / "here.out") == digests(tmp_path / "there.out")


def test_readers_of_transformers_4_know_the_names_of_an_imported_tokenizer(tmp_path):
    """transformers 4.51 and 4.57 opened both folders when this was written; with the names of 5 they raised errors."""
    from transformers import AutoTokenizer

    for name in ("source", "saved", "imported", "export"):
        (tmp_path / name).mkdir()
    auto = AutoTokenizer.from_pretrained(write_gemma_like(tmp_path / "source"))
    auto.add_special_tokens({"extra_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
    auto.save_pretrained(tmp_path / "saved")
    config = read_json(tmp_path / "saved" / "tokenizer_config.json")
    write_json(tmp_path / "saved" / "tokenizer_config.json", config | {"tokenizer_class": "TokenizersBackend"})

    meta = write_huggingface(tmp_path / "imported", tmp_path / "saved")
    write_for_generation(tmp_path / "export", tmp_path / "imported", meta["eot_id"])

    for name in ("imported", "export"):
        config = read_json(tmp_path / name / "tokenizer_config.json")
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and "extra_special_tokens" not in config
        assert config["additional_special_tokens"] == ["<start_of_turn>", "<end_of_turn>"]
        again = AutoTokenizer.from_pretrained(tmp_path / name)
        assert again("see <tag> x").input_ids[1:] == auto("see <tag> x").input_ids[1:]


def test_end_of_text_comes_before_eos(bpe_folder, tmp_path):
    source = shutil.copytree(bpe_folder, tmp_path / "source")
    write_json(source / "tokenizer_config.json", {"eos_token": "<end of turn>"})
    folder = tmp_path / "out"
    folder.mkdir()

    write_huggingface(folder, source)

    ours = load_tokenizer(bpe_folder)
    imported = load_tokenizer(folder)
    assert imported.meta["special_tokens"]["<end of turn>"] == VOCAB_SIZE
    assert (imported.vocab_size, imported.eot_id) == (VOCAB_SIZE, ours.eot_id)
    expected, _ = ours.encode_documents(TEXTS[:2000])
    ids, _ = imported.encode_documents(TEXTS[:2000])
    assert ids.tolist() == expected.tolist()
    assert imported.token_bytes.tolist() == ours.token_bytes.tolist()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with text in raw; call the fixture with a tokenizer preset to run the stage."""
    write_source(tmp_path / "raw", "mine", train=TRAINING)
    monkeypatch.chdir(tmp_path)

    def run(params: dict, path: Path = Path("nowhere"), **changed) -> int:
        train = {"split": "train", "start_char": 0, "num_chars": None, **changed}
        write_json("params.yaml", {"data": {"source": "mine"}, "tokenizer": {"name": "t", "path": str(path)}})
        write_json("sources.yaml", {"sources": {"mine": {"train": train}}})
        write_json("presets.yaml", {"tokenizers": {"t": params}})
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


def test_another_slice_gives_another_vocabulary(project, bpe_folder):
    assert project(BPE, num_chars=5000) == 0

    assert files_of("data/tokenizer") != files_of(bpe_folder)


def test_a_text_that_has_fewer_pairs_gives_fewer_entries_and_a_warning(project, capsys):
    assert project(BPE | {"vocab_size": 50_000}) == 0

    assert load_tokenizer("data/tokenizer").vocab_size < 50_000
    assert "fewer" in capsys.readouterr().err


@pytest.mark.parametrize("former", ["cl100k", "o200k"])
def test_a_pretokenizer_of_an_earlier_version_is_refused_with_the_one_to_write(project, capsys, former):
    assert project(BPE | {"pretokenizer": former}) == 2
    assert f"tokenizers.t.pretokenizer is '{former}'; it must be one of gpt2" in capsys.readouterr().err


def test_another_vocabulary_of_tiktoken_is_refused(monkeypatch):
    ranks = {bytes([byte]): byte for byte in range(256)}
    special = {"<|endoftext|>": 256}
    other = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: other)
    monkeypatch.setattr(build, "_check_cache", lambda name: [])
    with pytest.raises(IntegrityError, match=r"tiktoken's gpt2: sha256 of its ranks is"):
        build.download_ranks("gpt2")


@pytest.mark.parametrize("named", ["model", "model/tokenizer"])
def test_the_tokenizer_of_a_model_is_copied(project, bpe_folder, named):
    shutil.copytree(bpe_folder, Path("model/tokenizer"))

    assert project({"kind": "folder"}, Path(named)) == 0

    assert digests(Path("data/tokenizer")) == digests(bpe_folder)


def test_a_folder_that_transformers_saved_is_converted(project, bpe_folder):
    saved = shutil.copytree(bpe_folder, Path("saved"))
    (saved / "meta.json").unlink()
    write_json(saved / "config.json", {"model_type": "t5"})

    assert project({"kind": "folder"}, saved) == 0

    converted = load_tokenizer("data/tokenizer")
    assert converted.meta["kind"] == "huggingface"
    assert converted.encode(TEXTS[0]) == load_tokenizer(bpe_folder).encode(TEXTS[0])


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        (lambda folder: shutil.rmtree(folder), 2, r"has neither meta.json nor the tokenizer.json .* name the folder"),
        (lambda folder: (folder / "ranks.tiktoken").write_text("YQ== 0"), 4, r"ranks.tiktoken: sha256 is"),
        (lambda folder: name_outside(folder), 4, r"names the file '../x', which must be a path inside"),
    ],
)
def test_a_damaged_folder_is_refused(project, bpe_folder, capsys, change, code, sentence):
    change(shutil.copytree(bpe_folder, Path("mine")))
    assert project({"kind": "folder"}, Path("mine")) == code
    assert re.fullmatch(f"error: mine.*{sentence}.*\n", capsys.readouterr().err)
    assert not Path("data/tokenizer").exists()


def name_outside(folder: Path) -> None:
    meta = read_json(folder / "meta.json")
    write_json(folder / "meta.json", meta | {"files": {"../x": "0" * 64, **meta["files"]}})


def test_a_vocabulary_without_all_bytes_is_refused(project, capsys):
    assert project(BPE | {"vocab_size": 256}) == 2
    assert "vocab_size is 256; it must be from 257 (all bytes, end-of-text) to 4,194,304" in capsys.readouterr().err
    assert not list(Path().glob("data/[!.]*")), "only the lock may remain"
