"""generate: loads a trained model and prints the text of the sampled ids; and batches of token files."""

import itertools
import re
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from tokenizers import decoders, models

from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import Tokenizer
from support.model_cases import SHAPE, TEXTS, build, write_bpe, write_gemma_like, write_trained
from tools.generate import main, stream_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A folder with a tokenizer and a trained model, and what lies in them."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = write_bpe(folder / "tokenizer")
    model = build(tokenizer.vocab_size)
    record = write_trained(folder / "models", model, tokenizer)
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, model=model, record=record)


@pytest.fixture
def run(trained, capsys):
    """The command, as a function of its arguments: (exit status, standard output, standard error)."""

    def run_it(*arguments, models=trained.folder / "models", tokenizer=trained.folder / "tokenizer"):
        status = main([*map(str, arguments), "--models", str(models), "--tokenizer", str(tokenizer)])
        return status, *capsys.readouterr()

    return run_it


def sampled(trained, prompt: str, new_tokens: int, seed: int = 1, **settings) -> list[int]:
    ids = [trained.tokenizer.eot_id, *trained.tokenizer.encode(prompt)]
    settings = {"temperature": 0.8, "top_k": 50, "eot_id": trained.tokenizer.eot_id} | settings
    return list(generate(trained.model, ids, new_tokens, generator=torch.Generator().manual_seed(seed), **settings))


# The snippets of the first system's document, with this project's imports.


# Loading.


# Text while it is drawn.


@pytest.fixture(scope="module")
def gemma_like(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("gemma")
    return write_gemma_like(folder / "tokenizer", folder / "source")


@pytest.mark.parametrize("kind", ["byte_level", "gemma_like"])
def test_streamed_text_tears_no_character(trained, gemma_like, kind):
    tokenizer = trained.tokenizer if kind == "byte_level" else gemma_like
    for prompt, text in itertools.pairwise(TEXTS):
        prompt = prompt.replace("\ufffd", "")
        text = text.replace("\ufffd", "")
        ids = tokenizer.encode(text)
        prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
        pieces = list(stream_text(tokenizer, prompt_ids, ids))
        assert "".join(pieces) == tokenizer.decode(ids) and "\ufffd" not in "".join(pieces)


def test_a_token_is_shown_as_in_the_whole_text():
    """A space that stands at the beginning of a text is none; and the work does not grow with the text."""
    backend = tokenizers.Tokenizer(models.WordLevel({"▁one": 0, "▁day": 1, "s": 2}, unk_token="s"))
    backend.decoder = decoders.Metaspace()
    lengths = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return backend.decode(ids)

    pieces = stream_text(SimpleNamespace(decode=decode), [0], [1, 2, 0, 1] * 20)
    assert list(pieces) == [" day", "s", " one", " day"] * 20 and max(lengths) == 2


# The command.


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--temperature", 1.3, "--top_k", 0, "--top_p", 0.9], {"temperature": 1.3, "top_k": None, "top_p": 0.9}),
        (
            ["--min_p", 0.2, "--seed", 7, "--top_k", 9, "--no_cache"],
            {"min_p": 0.2, "seed": 7, "top_k": 9, "use_cache": False},
        ),
        (["--temperature", 0], {"temperature": 0}),
    ],
)
def test_prints_the_prompt_and_what_the_model_draws(trained, run, arguments, settings):
    status, out, err = run("One day, é漢", "--max_new_tokens", 20, *arguments)
    ids = sampled(trained, "One day, é漢", 20, **settings)
    assert (status, out) == (0, "One day, é漢" + trained.tokenizer.decode(ids) + "\n")
    found = rf"seed {settings.get('seed', 1)}: 20 tokens, \d+ a second, cut at max_new_tokens\n"
    assert re.fullmatch(found, err)


def test_settings_out_of_range_are_refused(run):
    assert run("x", "--top_p", 1.5)[::2] == (2, "error: --top_p is 1.5; it must be above 0, at most 1\n")
    status, _, err = run("x " * 200)
    assert status == 2 and re.search(r"the prompt has \d+ tokens; it must have fewer than max_seq_len \(96\)", err)


def test_each_sample_has_its_own_seed(trained, run):
    status, out, err = run("The", "--num_samples", 2, "--seed", 4, "--max_new_tokens", 500)
    length = SHAPE["max_seq_len"] - 1 - len(trained.tokenizer.encode("The"))
    drawn = [sampled(trained, "The", length, seed) for seed in (4, 5)]
    ended = [ids[-1] == trained.tokenizer.eot_id for ids in drawn]
    texts = [trained.tokenizer.decode(ids[:-1] if end else ids) for ids, end in zip(drawn, ended, strict=True)]
    assert (status, out) == (0, "".join(f"The{text}\n" for text in texts)) and len(set(texts)) == 2
    assert err.count("ended by itself") == sum(ended) < 2
    assert err.count(f"{length} tokens") == err.count("cut at the model's max_seq_len") == 2 - sum(ended)


def test_stops_at_the_end_of_the_text(trained, run, tmp_path):
    """Without its blocks the model says again what was said last: after an end of text, that."""
    model = Gemma3Model(trained.model.config)
    tokenizer = trained.tokenizer
    model.embed_tokens.weight.data = trained.model.embed_tokens.weight.data
    write_trained(tmp_path / "models", model, tokenizer)
    status, out, err = run("", "--temperature", 0, "--max_new_tokens", 9, models=tmp_path / "models")
    assert (status, out) == (0, "\n") and "1 tokens" in err and "ended by itself" in err
    assert run("x", "--temperature", 0, "--max_new_tokens", 9, models=tmp_path / "models")[1] == "x" * 10 + "\n"


def test_another_tokenizer_is_refused(trained, run, tmp_path):
    other = write_bpe(tmp_path / "other", seed=4)
    status, out, err = run("x", tokenizer=tmp_path / "other")
    assert (status, out) == (4, "")
    assert trained.tokenizer.sha256[:12] in err and other.sha256[:12] in err and str(tmp_path / "other") in err


@pytest.mark.parametrize("arguments", [[], ["--no_cache"]])
def test_the_cache_is_used_unless_it_is_not_wanted(run, monkeypatch, arguments):
    settings = {}

    def generate_nothing(*_, **given):
        settings.update(given)
        return iter([])

    monkeypatch.setattr("tools.generate.generate", generate_nothing)
    assert run("x", *arguments)[0] == 0 and settings["use_cache"] is not bool(arguments)


def test_the_number_of_threads_stays_so_that_a_seed_gives_one_text(run, monkeypatch):
    monkeypatch.setattr("lm.exact.threads.set_num_threads", pytest.fail)

    assert run("x", "--num_samples", 2, "--max_new_tokens", 3)[0] == 0


def test_the_rate_is_the_tokens_of_a_second(run, monkeypatch):
    clock = iter([10.0, 14.0])
    monkeypatch.setattr("tools.generate.time", SimpleNamespace(perf_counter=lambda: next(clock)))

    _, _, summary = run("x", "--max_new_tokens", "20", "--temperature", "0")

    tokens = int(re.search(r"seed 1: (\d+) tokens", summary)[1])
    assert f", {tokens / 4:.0f} a second, " in summary
