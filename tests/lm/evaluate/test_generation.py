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
    sampling = Sampling(3.0)
    points = sampling.points(80, seeded(2)).split(1)
    for number, drawn in enumerate(stream):
        text = PROMPT + stream[:number]
        logits = within(torch.tensor([text]))[0, -1]
        assert int(sampling.draw(logits, points[number])) == drawn


# The end of a text


def test_prompt_and_text_fill_the_model_at_most(model):
    num_tokens = MAX_SEQ_LEN - len(PROMPT)

    assert len(sample(model, num_tokens, temperature=0.0)) == num_tokens
    with pytest.raises(ValueError, match=r"129; it must be at most max_seq_len \(128\)"):
        sample(model, num_tokens + 1)


# Filters and draws

PROBABILITIES = [0.1, 0.5, 0.15, 0.25]
EQUAL = [0.25] * 4


@pytest.mark.parametrize(
    ("probabilities", "filters", "kept"),
    [
        (PROBABILITIES, {"top_k": 2}, [1, 3]),
        (PROBABILITIES, {"top_p": 1e-6}, [1]),
        (PROBABILITIES, {"top_p": 0.74}, [1, 3]),
        (PROBABILITIES, {"top_p": 0.76}, [1, 2, 3]),
        (PROBABILITIES, {"top_k": 3, "top_p": 0.8}, [1, 3]),  # of the three, two have five sixths
        (PROBABILITIES, {"min_p": 0.29}, [1, 2, 3]),
        (PROBABILITIES, {"min_p": 0.31}, [1, 3]),
        (EQUAL, {"top_p": 0.5}, [0, 1]),
        (EQUAL, {"top_k": 3}, [0, 1, 2, 3]),  # with those equal to the third
        (EQUAL, {"min_p": 1.0}, [0, 1, 2, 3]),
    ],
)
def test_filters_keep_the_likely_entries(probabilities, filters, kept):
    logits = torch.tensor(probabilities).log()

    filtered = filter_logits(logits, **filters)

    wanted = torch.full((4,), -math.inf)
    wanted[kept] = logits[kept]
    assert torch.equal(filtered, wanted)


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize(
    ("sampling", "drawn"),
    [
        (Sampling(1.0), (1, 50, 99)),
        (Sampling(0.3), (1, 50, 99)),
        (Sampling(2.0, top_k=2), (50,)),
        (Sampling(1.0, min_p=4e-9), (50,)),
    ],
)
def test_a_point_draws_the_id_in_whose_interval_it_is_however_rare_it_is(sampling, drawn, numerics):
    """In float32 the sums after the first entry would be equal."""
    at_temperature = torch.full((100,), -20.0)
    at_temperature[[0, 50]] = torch.tensor([0.0, -19.0])
    kept = filter_logits(at_temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    p = exact.softmax(kept) if numerics == "exact" else kept.softmax(0)
    ends = list(itertools.accumulate(p.tolist()))

    for wanted in drawn:
        middle = (ends[wanted - 1] + ends[wanted]) / 2
        point = torch.tensor([middle / ends[-1]], dtype=torch.float64)
        assert int(sampling.draw(at_temperature * sampling.temperature, point, numerics)) == wanted
