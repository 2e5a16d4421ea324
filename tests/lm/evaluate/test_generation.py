"""Test sampling: the cache changes no id, the filters follow their definitions, a seed decides every draw."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lm.evaluate.generation import KVCache, Sampling, filter_logits, generate
from lm.model.gemma3 import Gemma3Model, ModelConfig
from support.model_cases import SHAPE, build

CONFIG = ModelConfig(**SHAPE | {"max_seq_len": 128}, vocab_size=53)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def model() -> Gemma3Model:
    return build(53, max_seq_len=128)


def sample(model, new_tokens: int, seed: int = 0, prompt=PROMPT, **settings) -> list[int]:
    return list(generate(model, prompt, new_tokens, generator=torch.Generator().manual_seed(seed), **settings))


@pytest.mark.parametrize("pieces", [[1] * 40, [3, 9, 13, 15]], ids=["singles", "pieces"])
def test_cache_gives_the_same_logits_whatever_the_pieces(model, pieces):
    ids = torch.randint(CONFIG.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    cache = KVCache()
    with torch.inference_mode():
        logits = torch.cat([model(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
        assert (logits - model(ids)).abs().max() < 1e-5 * logits.abs().max()
    assert cache.num_tokens == 40
    kept = [cache.past[layer][0].shape[2] for layer in range(CONFIG.n_layer)]
    assert kept == [7, 7, 40, 7]  # a sliding layer keeps its window, less one for the next token


@pytest.mark.parametrize("window", [1, 8, 20, 200])
@pytest.mark.parametrize("pieces", [[1] * 70, [3, 9, 43, 15]], ids=["singles", "pieces"])
def test_the_cache_changes_no_bit_of_exact_logits(window, pieces):
    model = build(53, numerics="exact", sliding_window=window, max_seq_len=128)
    ids, cache = torch.randint(53, (2, 70), generator=torch.Generator().manual_seed(0)), KVCache()
    with torch.inference_mode():
        logits = torch.cat([model(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
        assert torch.equal(logits, model(ids))


@pytest.fixture
def within(model):
    """Return the model such that it keeps to its document, which begins with id 9."""
    other = Gemma3Model(CONFIG)
    other.load_state_dict(model.state_dict())
    other.document_start_id = 9
    return other


@pytest.mark.parametrize("use_cache", [True, False])
def test_only_the_last_document_of_a_prompt_counts(model, within, use_cache):
    settings = {"temperature": 1.0, "use_cache": use_cache, "eot_id": 9}
    last = PROMPT[PROMPT.index(9) :]
    assert sample(within, 30, **settings) == sample(model, 30, prompt=last, **settings)
    assert sample(within, 30, **settings) != sample(model, 30, **settings)
    assert sample(within, 30, prompt=last[1:], **settings) == sample(model, 30, prompt=last[1:], **settings)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_drawn_document_end_begins_a_new_document(within, use_cache):
    within.document_start_id = 40
    stream = sample(within, 80, seed=2, temperature=3.0, use_cache=use_cache)
    assert 40 in stream[:-1]
    generator = torch.Generator().manual_seed(2)
    for number, drawn in enumerate(stream):  # each id is drawn from the logits of the whole text, masked
        logits = within(torch.tensor([PROMPT + stream[:number]]))[0, -1]
        assert Sampling(3.0).draw(logits, generator) == drawn


def test_a_second_document_in_a_cache_is_refused(within):
    cache = KVCache()
    within.hidden(torch.tensor([[9, 1, 2]]), cache)
    within.hidden(torch.tensor([[3]]), cache)
    with pytest.raises(
        ValueError, match="the cache holds the end of a document, needed: a new cache for each document"
    ):
        within.hidden(torch.tensor([[9]]), cache)
    with pytest.raises(ValueError, match="a new cache"):
        within.hidden(torch.tensor([[9, 1, 9]]), KVCache())


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize(
    ("window", "temperature", "prompt"), [(1, 1.0, PROMPT), (8, 0.0, PROMPT), (8, 1.0, PROMPT[:1]), (200, 1.0, PROMPT)]
)
def test_cache_changes_no_id(model, window, temperature, prompt, numerics):
    """Generate more than two windows of tokens."""
    other = Gemma3Model(dataclasses.replace(CONFIG, sliding_window=window), numerics)
    other.load_state_dict(model.state_dict())
    for seed in range(3):
        ids = sample(other, 30, seed, temperature=temperature, prompt=prompt)
        assert ids == sample(other, 30, seed, temperature=temperature, prompt=prompt, use_cache=False)
        assert len(ids) == 30
        assert temperature == 0 or len(set(ids)) > 5


@pytest.mark.parametrize("window", [8, 20])
def test_cache_changes_no_id_of_an_exact_model_that_keeps_to_its_document(model, window):
    other = Gemma3Model(dataclasses.replace(CONFIG, sliding_window=window), "exact")
    other.load_state_dict(model.state_dict())
    other.document_start_id = 40
    texts = [sample(other, 60, seed, temperature=3.0) for seed in range(4)]
    assert any(40 in ids[:-1] for ids in texts)
    assert texts == [sample(other, 60, seed, temperature=3.0, use_cache=False) for seed in range(4)]


def kept_by_definition(logits: list[float], top_k, top_p, min_p) -> set[int]:
    """Return the ids that the filters keep of a list without ties, by their definitions."""
    kept = sorted(range(len(logits)), key=lambda i: -logits[i])[:top_k]
    if top_p is not None:
        total = sum(math.exp(logits[i]) for i in kept)
        cumulative = itertools.accumulate(math.exp(logits[i]) / total for i in kept)
        kept = kept[: next((n for n, p in enumerate(cumulative, 1) if p >= top_p), len(kept))]
    if min_p is not None:
        kept = [i for i in kept if math.exp(logits[i]) >= min_p * math.exp(max(logits))]
    return set(kept)


def test_filters_follow_their_definitions():
    generator = torch.Generator().manual_seed(0)
    settings = itertools.product((None, 1, 3, 50), (None, 1e-6, 0.35, 0.95), (None, 0.05, 0.999))
    for size, (top_k, top_p, min_p) in itertools.product((1, 2, 20), settings):
        logits = torch.randn(size, generator=generator) * 2
        before = logits.clone()
        found = filter_logits(logits, top_k, top_p, min_p)
        kept = {i for i in range(size) if found[i] > -math.inf}
        assert kept == kept_by_definition(logits.tolist(), top_k, top_p, min_p)
        assert all(found[i] == logits[i] for i in kept) and torch.equal(logits, before)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize(("temperature", "top_k"), [(0.5, None), (1.0, 2)])
def test_draws_follow_the_softmax_at_the_temperature(temperature, top_k, numerics):
    logits, generator = torch.tensor([1.0, 0.0, -1.0, 0.5]), torch.Generator().manual_seed(0)
    sampling = Sampling(temperature, top_k=top_k)
    counts = torch.bincount(
        torch.tensor([sampling.draw(logits, generator, numerics) for _ in range(4000)]), minlength=4
    )
    wanted = filter_logits(logits / temperature, top_k=top_k).softmax(0)
    assert (counts / 4000 - wanted).abs().max() < 0.03


def test_a_draw_makes_float64_numbers_on_the_cpu():
    """Not every device has them."""
    calls = []

    class Calls(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    with Calls():
        Sampling(1.0).draw(torch.zeros(5), torch.Generator().manual_seed(0))
    assert calls.index("cpu") < calls.index("double")
