"""Test sampling: the cache changes no id, the filters follow their definitions, a seed decides every draw."""

import itertools
import math

import pytest
import torch

from lm.evaluate.generation import KVCache, Sampling, filter_logits, generate
from lm.exact import functions as exact
from lm.model.gemma3 import Gemma3Model, ModelConfig
from support.model_cases import SHAPE, assert_close, build

VOCAB_SIZE = 53
MAX_SEQ_LEN = 128
CONFIG = ModelConfig(**SHAPE | {"max_seq_len": MAX_SEQ_LEN}, vocab_size=VOCAB_SIZE)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def model() -> Gemma3Model:
    return build(VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(model, num_tokens: int, seed: int = 0, prompt=PROMPT, **settings) -> list[int]:
    return list(generate(model, prompt, num_tokens, generator=seeded(seed), **settings))


def draw_one(sampling: Sampling, logits: torch.Tensor, generator: torch.Generator, numerics="fast") -> int:
    points = sampling.points(1, generator)
    return int(sampling.draw(logits, points, numerics))


# The cache


def random_ids() -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (2, 70), generator=seeded(0))


def logits_piece_by_piece(model, ids: torch.Tensor, sizes: list[int], cache: KVCache) -> torch.Tensor:
    pieces = ids.split(sizes, dim=1)
    logits = [model(piece, cache) for piece in pieces]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("window", [1, 8, 200])
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_the_cache_changes_no_bit_of_exact_logits_and_rounding_alone_of_fast_ones(window, numerics):
    """A piece of several tokens sees what came before it, and of itself only what is not later."""
    model = build(VOCAB_SIZE, numerics=numerics, sliding_window=window, max_seq_len=MAX_SEQ_LEN)
    ids = random_ids()

    with torch.inference_mode():
        whole = model(ids)
        for sizes in ([1] * 70, [3, 9, 43, 15]):
            logits = logits_piece_by_piece(model, ids, sizes, KVCache())
            if numerics == "exact":
                assert torch.equal(logits, whole)
            else:
                assert_close(logits, whole)


def test_a_layer_sees_its_window():
    keys = torch.arange(300.0).view(1, 1, 300, 1)
    ends = [0, 7, *range(8, 301)]  # seven tokens at once, then one at a time

    for window in (1, 5, 1000):
        cache = KVCache()
        for begin, end in itertools.pairwise(ends):
            new = keys[:, :, begin:end]
            seen, values = cache.extend(0, new, -new, window)

            first_seen = max(0, begin - (window - 1))
            assert seen.flatten().tolist() == list(range(first_seen, end)), window
            assert torch.equal(values, -seen)
        assert cache.num_tokens == 300


# Documents in a text

DOCUMENT_START = 9


@pytest.fixture
def within(model):
    """Return the model such that it keeps to its document."""
    other = Gemma3Model(CONFIG)
    other.load_state_dict(model.state_dict())
    other.document_start_id = DOCUMENT_START
    return other


cached_or_not = pytest.mark.parametrize("use_cache", [True, False])


@cached_or_not
def test_the_last_document_of_a_prompt_counts(model, within, use_cache):
    last_document = PROMPT[PROMPT.index(DOCUMENT_START) :]
    settings = {"temperature": 1.0, "use_cache": use_cache, "eot_id": DOCUMENT_START}

    for prompt, counted in ((PROMPT, last_document), (last_document[1:], last_document[1:])):
        assert sample(within, 30, prompt=prompt, **settings) == sample(model, 30, prompt=counted, **settings)


@cached_or_not
def test_a_drawn_document_end_begins_a_new_document(within, use_cache):
    """Each id is drawn from the logits of the whole text, masked."""
    within.document_start_id = 40

    stream = sample(within, 80, seed=2, temperature=3.0, use_cache=use_cache)

    assert 40 in stream[:-1]
    generator = seeded(2)
    for number, drawn in enumerate(stream):
        text = PROMPT + stream[:number]
        logits = within(torch.tensor([text]))[0, -1]
        assert draw_one(Sampling(3.0), logits, generator) == drawn


# The end of a text


def test_prompt_and_text_fill_the_model_at_most(model):
    num_tokens = MAX_SEQ_LEN - len(PROMPT)

    assert len(sample(model, num_tokens, temperature=0.0)) == num_tokens
    with pytest.raises(ValueError, match=r"129; it must be at most max_seq_len \(128\)"):
        sample(model, num_tokens + 1)


# How weights are packed


def test_weights_that_were_made_in_inference_mode_draw_the_same_ids():
    with torch.inference_mode():
        model = build(VOCAB_SIZE, numerics="exact")

    assert sample(model, 5) == sample(build(VOCAB_SIZE, numerics="exact"), 5)


# Filters and draws


def kept_by_definition(logits: list[float], top_k, top_p, min_p) -> set[int]:
    """Return the ids that the filters keep of a list without ties, by their definitions."""
    kept = sorted(range(len(logits)), key=lambda i: -logits[i])
    kept = kept[:top_k]
    if top_p is not None:
        total = sum(math.exp(logits[i]) for i in kept)
        cumulative = itertools.accumulate(math.exp(logits[i]) / total for i in kept)
        num_below = sum(probability < top_p for probability in cumulative)
        kept = kept[: num_below + 1]
    if min_p is not None:
        least = min_p * math.exp(max(logits))
        kept = [i for i in kept if math.exp(logits[i]) >= least]
    return set(kept)


@pytest.mark.parametrize("top_k", [None, 1, 3, 50])
def test_filters_follow_their_definitions(top_k):
    generator = seeded(0)

    for top_p, min_p in itertools.product((None, 1e-6, 0.35, 0.95), (None, 0.05, 0.999)):
        logits = torch.randn(20, generator=generator) * 2

        filtered = filter_logits(logits.clone(), top_k, top_p, min_p)

        kept = filtered > -math.inf
        assert set(kept.nonzero().flatten().tolist()) == kept_by_definition(logits.tolist(), top_k, top_p, min_p)
        assert torch.equal(filtered[kept], logits[kept])


def test_filters_of_equal_entries_keep_what_reaches_the_limit():
    for filters, num_kept in [
        ({"top_p": 0.5}, 2),  # two of four equal entries reach it
        ({"top_p": 0.51}, 3),
        ({"top_k": 3}, 4),  # with those equal to the third
        ({"min_p": 1.0}, 4),
    ]:
        filtered = filter_logits(torch.zeros(4), **filters)
        assert int((filtered > -math.inf).sum()) == num_kept


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize(("temperature", "top_k", "min_p"), [(0.5, None, None), (2.0, 2, 0.7)])
def test_draws_follow_the_softmax_of_what_the_filters_keep_at_the_temperature(temperature, top_k, min_p, numerics):
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    sampling = Sampling(temperature, top_k=top_k, min_p=min_p)
    generator = seeded(0)

    drawn = [draw_one(sampling, logits, generator, numerics) for _ in range(1000)]

    frequencies = torch.bincount(torch.tensor(drawn), minlength=4) / 1000
    expected = filter_logits(logits / temperature, top_k, None, min_p).softmax(0)
    assert (frequencies - expected).abs().max() < 0.05


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_ids_after_a_likely_one_are_drawn_however_rare_they_are(numerics):
    """In float32 the sums after the first entry would be equal."""
    logits = torch.full((100,), -20.0)
    logits[0] = 0
    p = exact.softmax(logits) if numerics == "exact" else logits.softmax(0)
    ends = list(itertools.accumulate(p.tolist()))

    for wanted in (1, 50, 99):
        middle = (ends[wanted - 1] + ends[wanted]) / 2
        point = torch.tensor([middle / ends[-1]], dtype=torch.float64)
        assert int(Sampling().draw(logits, point, numerics)) == wanted
