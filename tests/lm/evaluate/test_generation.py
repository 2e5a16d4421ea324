"""Test sampling: the cache changes no id, the filters follow their definitions, a seed decides every draw."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from lm.evaluate import generation
from lm.evaluate.generation import KVCache, Sampling, filter_logits, generate, ids_per_read
from lm.exact import cpu
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model, ModelConfig
from support.model_cases import SHAPE, assert_close, build

CONFIG = ModelConfig(**SHAPE | {"max_seq_len": 128}, vocab_size=53)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def model() -> Gemma3Model:
    return build(53, max_seq_len=128)


def sample(model, new_tokens: int, seed: int = 0, prompt=PROMPT, **settings) -> list[int]:
    return list(generate(model, prompt, new_tokens, generator=torch.Generator().manual_seed(seed), **settings))


def draw_one(sampling: Sampling, logits: torch.Tensor, generator: torch.Generator, numerics="fast") -> int:
    return int(sampling.draw(logits, sampling.points(1, generator), numerics))


@pytest.mark.parametrize("window", [1, 8, 200])
@pytest.mark.parametrize("pieces", [[1] * 70, [3, 9, 43, 15]], ids=["singles", "pieces"])
def test_the_cache_changes_no_bit_of_exact_logits(window, pieces):
    """A sliding layer keeps its window, less one for the next token."""
    model = build(53, numerics="exact", sliding_window=window, max_seq_len=128)
    ids = torch.randint(53, (2, 70), generator=torch.Generator().manual_seed(0))
    cache = KVCache()
    with torch.inference_mode():
        logits = torch.cat([model(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
        assert torch.equal(logits, model(ids))
    kept = [cache.kept(layer) for layer in range(CONFIG.n_layer)]
    assert kept == [min(window - 1, 70) if layer != 2 else 70 for layer in range(4)]


@pytest.mark.parametrize("window", [1, 8, 200])
@pytest.mark.parametrize("pieces", [[1] * 70, [3, 9, 43, 15]], ids=["singles", "pieces"])
def test_the_cache_changes_fast_logits_by_rounding_alone(window, pieces):
    """A piece of several tokens sees what came before it, and of itself only what is not later."""
    model = build(53, sliding_window=window, max_seq_len=128)
    ids = torch.randint(53, (2, 70), generator=torch.Generator().manual_seed(0))
    cache = KVCache()
    with torch.inference_mode():
        logits = torch.cat([model(piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
        wanted = model(ids)
    assert_close(logits, wanted)


@pytest.mark.parametrize("window", [1, 2, 5, 1000])
def test_a_layer_sees_its_window_and_moves_the_past_seldom(window):
    keys = torch.arange(300.0).view(1, 1, 300, 1)
    cache = KVCache()
    places = set()

    for end, size in zip([7, *range(8, 301)], [7, *[1] * 293], strict=True):
        new = keys[:, :, end - size : end]
        seen, values = cache.extend(0, new, -new, window)
        first = max(0, end - size - (window - 1))
        assert seen.flatten().tolist() == list(range(first, end))
        assert torch.equal(values, -seen)
        places.add(seen.untyped_storage().data_ptr())

    assert cache.num_tokens == 300
    assert len(places) < 10


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


def test_a_text_ends_with_its_end_of_text(model):
    ids = sample(model, 60, temperature=2.0)
    for eot_id in {ids[0], ids[7], ids[59]}:
        assert sample(model, 60, temperature=2.0, eot_id=eot_id) == ids[: ids.index(eot_id) + 1]


def test_prompt_and_text_fill_the_model(model):
    assert len(sample(model, 128 - len(PROMPT), temperature=0.0)) == 128 - len(PROMPT)
    with pytest.raises(ValueError, match=r"prompt plus max_new_tokens is 129; it must be at most max_seq_len \(128\)"):
        sample(model, 129 - len(PROMPT))


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_drawn_document_end_begins_a_new_document(within, use_cache):
    within.document_start_id = 40
    stream = sample(within, 80, seed=2, temperature=3.0, use_cache=use_cache)
    assert 40 in stream[:-1]
    generator = torch.Generator().manual_seed(2)
    for number, drawn in enumerate(stream):  # each id is drawn from the logits of the whole text, masked
        logits = within(torch.tensor([PROMPT + stream[:number]]))[0, -1]
        assert draw_one(Sampling(3.0), logits, generator) == drawn


def test_a_second_document_in_a_cache_is_refused(within):
    cache = KVCache()
    within.hidden(torch.tensor([[9, 1, 2]]), cache)
    within.hidden(torch.tensor([[3]]), cache)
    with pytest.raises(
        ValueError, match="the cache holds the end of a document; each document must have a cache of its own"
    ):
        within.hidden(torch.tensor([[9]]), cache)
    with pytest.raises(ValueError, match="a cache of its own"):
        within.hidden(torch.tensor([[9, 1, 9]]), KVCache())


@pytest.mark.parametrize(("window", "temperature"), [(8, 0.0), (8, 1.0), (200, 1.0)])
def test_the_cache_changes_no_id(model, window, temperature):
    """Generate more than two windows of tokens."""
    other = Gemma3Model(dataclasses.replace(CONFIG, sliding_window=window))
    other.load_state_dict(model.state_dict())
    for seed in range(2):
        ids = sample(other, 30, seed, temperature=temperature)
        assert ids == sample(other, 30, seed, temperature=temperature, use_cache=False)
        assert len(ids) == 30
        assert temperature == 0 or len(set(ids)) > 5


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_how_many_ids_are_read_at_a_time_changes_none(model, monkeypatch, temperature, use_cache):
    """A GPU draws several before Python reads them."""
    settings = {"temperature": temperature, "use_cache": use_cache}
    one_by_one = sample(model, 40, **settings)
    until_end = sample(model, 40, eot_id=one_by_one[17], **settings)
    monkeypatch.setattr(generation, "ids_per_read", lambda model: 16)

    assert sample(model, 40, **settings) == one_by_one
    assert sample(model, 40, eot_id=one_by_one[17], **settings) == until_end


@pytest.mark.parametrize(
    ("device", "numerics", "document_start_id", "expected"),
    [("cuda", "fast", None, 16), ("cuda", "fast", 9, 1), ("cuda", "exact", None, 1), ("cpu", "fast", None, 1)],
)
def test_several_ids_are_drawn_at_a_time_where_nothing_waits_for_them(device, numerics, document_start_id, expected):
    model = SimpleNamespace(device=torch.device(device), numerics=numerics, document_start_id=document_start_id)
    assert ids_per_read(model) == expected


def test_the_weights_are_packed_once_for_a_text(monkeypatch):
    model = build(53, numerics="exact", max_seq_len=128)
    ids = sample(model, 3)
    pack = cpu.pack
    packs = []
    monkeypatch.setattr(cpu, "pack", lambda matrix: packs.append(matrix) or pack(matrix))

    assert sample(model, 3) == ids
    num_packs = len(packs)
    sample(model, 30)
    assert len(packs) == 2 * num_packs


def test_packed_weights_that_change_are_packed_again():
    model = build(53, numerics="exact", max_seq_len=128)
    h = torch.ones(1, model.config.d_model)
    with torch.no_grad(), exact.keep_packed([model.embed_tokens.weight]):
        before = model.head(h)

        model.embed_tokens.weight.neg_()

        assert torch.equal(model.head(h), -before)


def test_two_texts_of_a_model_may_be_generated_at_once():
    model = build(53, numerics="exact", max_seq_len=128)
    alone = [sample(model, 8, seed) for seed in (0, 1)]
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    shorter, longer = (
        generate(model, PROMPT, count, generator=each) for count, each in zip((6, 8), generators, strict=True)
    )

    pairs = list(itertools.zip_longest(shorter, longer))

    assert [one for one, _ in pairs] == [*alone[0][:6], None, None]
    assert [other for _, other in pairs] == alone[1]


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
@pytest.mark.parametrize(
    ("temperature", "top_k", "apart"), [(0.5, None, 1), (1.0, 2, 1), (2.0, None, 1), (0.3, None, 0.2), (0.01, 3, 0.01)]
)
def test_draws_follow_the_softmax_at_the_temperature(temperature, top_k, apart, numerics):
    logits = apart * torch.tensor([1.0, 0.0, -1.0, 0.5])
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature, top_k=top_k)
    counts = torch.bincount(
        torch.tensor([draw_one(sampling, logits, generator, numerics) for _ in range(4000)]), minlength=4
    )
    wanted = filter_logits(logits / temperature, top_k=top_k).softmax(0)
    assert (counts / 4000 - wanted).abs().max() < 0.03


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_p": 0.5}, 2),  # two of four equal entries reach it
        ({"top_p": 0.51}, 3),
        ({"top_p": 1.0}, 4),
        ({"top_p": 0.01}, 1),
        ({"top_k": 3}, 4),  # with those equal to the third
        ({"min_p": 1.0}, 4),
    ],
)
def test_filters_of_equal_entries_keep_what_reaches_the_limit(filters, kept):
    assert int((filter_logits(torch.zeros(4), **filters) > -math.inf).sum()) == kept


def test_filters_apply_after_the_temperature():
    """With min_p 0.5, the second entry is kept at temperature 2 and dropped at temperature 1."""
    logits = torch.tensor([0.0, -1.0])
    generator = torch.Generator().manual_seed(0)
    for temperature, expected in ((1.0, {0}), (2.0, {0, 1})):
        sampling = Sampling(temperature, min_p=0.5)
        assert {draw_one(sampling, logits, generator) for _ in range(100)} == expected


def test_the_limits_of_the_settings_are_accepted_and_what_is_beyond_them_is_not():
    assert Sampling(0.0, top_k=1, top_p=1.0, min_p=1.0).top_k == 1
    for name, values in {"temperature": [-0.1], "top_k": [0], "top_p": [0, 1.01], "min_p": [0, 1.01]}.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} is {value}; it must be "):
                Sampling(**{name: value})
