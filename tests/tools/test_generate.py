"""generate: loads a trained model and prints the text of the sampled ids."""

import itertools
import re
from types import SimpleNamespace

import pytest
import torch

from lm.evaluate.generation import generate
from lm.model.gemma3 import Gemma3Model
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


@pytest.fixture
def run(trained, capsys):
    """The command, as a function of its arguments, which returns status, output and errors."""

    def run_it(*arguments, models=trained.folder / "models") -> tuple[int, str, str]:
        words = [*arguments, "--models", models, "--tokenizer", trained.folder / "tokenizer"]
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run_it


def sampled(trained, prompt: str, num_tokens: int, seed: int = 1, **settings) -> list[int]:
    """Return the ids that the model draws after a prompt, by the defaults of the command and other settings."""
    eot_id = trained.tokenizer.eot_id
    prompt_ids = [eot_id, *trained.tokenizer.encode(prompt)]
    settings = {"temperature": 0.8, "top_k": 50, "eot_id": eot_id} | settings
    generator = torch.Generator().manual_seed(seed)
    return list(generate(trained.model, prompt_ids, num_tokens, generator=generator, **settings))


# Text while it is drawn.


@pytest.mark.parametrize("kind", ["byte_level", "gemma_like"])
def test_streamed_text_tears_no_character(trained, tmp_path, kind):
    is_gemma = kind == "gemma_like"
    tokenizer = write_gemma_like(tmp_path / "tokenizer", tmp_path / "source") if is_gemma else trained.tokenizer
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

    status, output, errors = run(prompt, "--max_new_tokens", 20, *arguments)

    text = trained.tokenizer.decode(sampled(trained, prompt, 20, **settings))
    assert (status, output) == (0, f"{prompt}{text}\n")
    assert re.fullmatch(r"seed 7: 20 tokens, \d+ a second, cut at max_new_tokens\n", errors)


def test_each_sample_has_its_own_seed(trained, run):
    _, output, _ = run("The", "--num_samples", 2, "--seed", 4, "--max_new_tokens", 9)

    first, second = (trained.tokenizer.decode(sampled(trained, "The", 9, seed)) for seed in (4, 5))
    assert output == f"The{first}\nThe{second}\n"
    assert first != second


def test_a_text_is_cut_where_the_model_ends(trained, run):
    prompt_tokens = 1 + len(trained.tokenizer.encode("The"))

    status, _, errors = run("The", "--seed", 4, "--temperature", 0, "--max_new_tokens", 500)

    assert status == 0
    assert f"{SHAPE['max_seq_len'] - prompt_tokens} tokens" in errors
    assert "cut at the model's max_seq_len" in errors


def test_stops_at_the_end_of_the_text(trained, run, tmp_path):
    """A model that has embeddings and no blocks says the last id again and again; an empty prompt is an end of text."""
    model = Gemma3Model(trained.model.config)
    model.embed_tokens.weight.data = trained.model.embed_tokens.weight.data
    write_trained(tmp_path / "models", model, trained.tokenizer)

    _, of_end, ended = run("", "--temperature", 0, "--max_new_tokens", 9, models=tmp_path / "models")
    _, of_x, cut = run("x", "--temperature", 0, "--max_new_tokens", 9, models=tmp_path / "models")

    assert (of_end, of_x) == ("\n", "x" * 10 + "\n")
    assert "1 tokens" in ended
    assert "ended by itself" in ended
    assert "ended by itself" not in cut


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--top_p", 1.5], "--top_p is 1.5; it must be above 0, at most 1"),
        (["x " * 200], "it must have fewer than max_seq_len (96)"),
    ],
)
def test_settings_out_of_range_are_refused(run, arguments, said):
    status, _, errors = run(*arguments)

    refused(status, errors, 2, said)
