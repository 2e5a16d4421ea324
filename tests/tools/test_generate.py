"""generate: loads a trained model and prints the text of the sampled ids."""

import itertools
import re
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
from lm.tokenizer.load import Tokenizer
from support.model_cases import SHAPE, TEXTS, build, write_bpe, write_gemma_like, write_trained
from support.refusal import refused
from tools.generate import main, stream_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SimpleNamespace:
    """A folder with a tokenizer and a trained model, and what is in them."""
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = write_bpe(folder / "tokenizer")
    model = build(tokenizer.vocab_size)
    record = write_trained(folder / "models", model, tokenizer)
    return SimpleNamespace(folder=folder, tokenizer=tokenizer, model=model, record=record)


class Done(NamedTuple):
    """What a call of the command left."""

    status: int
    output: str
    errors: str


@pytest.fixture
def run(trained, capsys):
    """The command, as a function of its arguments."""

    def run_it(*arguments, models=trained.folder / "models", tokenizer=trained.folder / "tokenizer") -> Done:
        words = [*arguments, "--models", models, "--tokenizer", tokenizer]
        status = main([str(word) for word in words])
        return Done(status, *capsys.readouterr())

    return run_it


def sampled(trained, prompt: str, num_tokens: int, seed: int = 1, **settings) -> list[int]:
    """Return the ids that the model draws after a prompt, by the defaults of the command and other settings."""
    eot_id = trained.tokenizer.eot_id
    prompt_ids = [eot_id, *trained.tokenizer.encode(prompt)]
    settings = {"temperature": 0.8, "top_k": 50, "eot_id": eot_id} | settings
    generator = torch.Generator().manual_seed(seed)
    return list(generate(trained.model, prompt_ids, num_tokens, generator=generator, **settings))


# Text while it is drawn.


@pytest.fixture(scope="module")
def gemma_like(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("gemma")
    return write_gemma_like(folder / "tokenizer", folder / "source")


@pytest.mark.parametrize("kind", ["byte_level", "gemma_like"])
def test_streamed_text_tears_no_character(trained, gemma_like, kind):
    tokenizer = trained.tokenizer if kind == "byte_level" else gemma_like
    texts = [text.replace("\ufffd", "") for text in TEXTS]

    for prompt, text in itertools.pairwise(texts):
        prompt_ids = [tokenizer.eot_id, *tokenizer.encode(prompt)]
        ids = tokenizer.encode(text)
        streamed = "".join(stream_text(tokenizer, prompt_ids, ids))
        assert streamed == tokenizer.decode(ids)
        assert "\ufffd" not in streamed


# The command.


def test_prints_the_prompt_and_what_the_model_draws(trained, run):
    prompt = "One day, é漢"
    settings = {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "seed": 7}
    arguments = [word for name, value in settings.items() for word in (f"--{name}", value)]

    done = run(prompt, "--max_new_tokens", 20, *arguments)

    text = trained.tokenizer.decode(sampled(trained, prompt, 20, **settings))
    assert done.status == 0
    assert done.output == f"{prompt}{text}\n"
    assert re.fullmatch(r"seed 7: 20 tokens, \d+ a second, cut at max_new_tokens\n", done.errors)


def test_each_sample_has_its_own_seed(trained, run):
    done = run("The", "--num_samples", 2, "--seed", 4, "--max_new_tokens", 9)

    first, second = (trained.tokenizer.decode(sampled(trained, "The", 9, seed)) for seed in (4, 5))
    assert done.status == 0
    assert done.output == f"The{first}\nThe{second}\n"
    assert first != second


def test_a_text_is_cut_where_the_model_ends(trained, run):
    prompt_tokens = 1 + len(trained.tokenizer.encode("The"))

    done = run("The", "--seed", 4, "--temperature", 0, "--max_new_tokens", 500)

    num_tokens = SHAPE["max_seq_len"] - prompt_tokens
    assert done.status == 0
    assert f"{num_tokens} tokens" in done.errors
    assert "cut at the model's max_seq_len" in done.errors


@pytest.fixture
def repeating(trained, tmp_path):
    """The folder of a model that says the last id again and again, as it has embeddings and no blocks."""
    model = Gemma3Model(trained.model.config)
    model.embed_tokens.weight.data = trained.model.embed_tokens.weight.data
    write_trained(tmp_path / "models", model, trained.tokenizer)
    return tmp_path / "models"


def test_stops_at_the_end_of_the_text(run, repeating):
    """An empty prompt is an end of text."""
    ended = run("", "--temperature", 0, "--max_new_tokens", 9, models=repeating)
    cut = run("x", "--temperature", 0, "--max_new_tokens", 9, models=repeating)

    assert (ended.status, ended.output) == (0, "\n")
    assert "1 tokens" in ended.errors
    assert "ended by itself" in ended.errors
    assert (cut.status, cut.output) == (0, "x" * 10 + "\n")
    assert "ended by itself" not in cut.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--top_p", 1.5], ["--top_p is 1.5; it must be above 0, at most 1"]),
        (["x " * 200], ["the prompt has ", "it must have fewer than max_seq_len (96)"]),
    ],
)
def test_settings_out_of_range_are_refused(run, arguments, said):
    done = run(*arguments)

    refused(done.status, done.errors, 2, *said)
