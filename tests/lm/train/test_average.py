"""The average of the weights: its definition, where it is used and saved, and that training does not see it."""

import itertools

import numpy as np
import pytest
import torch
from test_step import Params, Tokens, run

from lm.core.errors import DivergedError
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.train.optimizers import build_optimizers
from lm.train.preflight import estimate_memory_bytes
from lm.train.state import TrainingState, digest_of, named_tensors
from lm.train.step import record_validation, validation_loss
from support.model_cases import optimizer_params
from support.workspace import MICRO_MODEL

CONFIG, DECAY = ModelConfig(**MICRO_MODEL, vocab_size=50), 0.5


def new_state(decay=DECAY):
    model = Gemma3Model(CONFIG)
    model.init_weights(torch.Generator().manual_seed(1))
    return TrainingState(model, build_optimizers(model, optimizer_params(), torch.float32), average_decay=decay)


def run_with_weights(state):
    """Run to the end; return the weights after each step, as float64 arrays."""
    after = []
    while state.step < Params().max_steps:
        run(state, until=state.step + 1)
        after.append({name: value.double().numpy() for name, value in state.model.state_dict().items()})
    return after


def score(state):
    return validation_loss(state, Tokens(), Params(), torch.float32)


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("decay", [0.3, DECAY, 0.999])
def test_the_average_is_that_of_its_definition(decay):
    """In a run of 12 steps the start-up ends at step 3, at step 8, and never."""
    state = new_state(decay)
    first, *others = run_with_weights(state)
    for step, weights in enumerate(others, 2):
        kept = min(decay, (1 + step) / (10 + step))
        first = {name: kept * first[name] + (1 - kept) * weights[name] for name in first}
    for name, value in state.average.items():
        np.testing.assert_allclose(value.numpy(), first[name], rtol=0, atol=1e-6)


def test_training_does_not_depend_on_the_average_nor_on_validations():
    averaged, plain = new_state(), new_state(0.0)
    while averaged.step < Params().max_steps:
        run(averaged, until=averaged.step + 1)
        score(averaged)
    run(plain)
    assert equal(averaged.model.state_dict(), plain.model.state_dict()) and averaged.history == plain.history
    assert plain.average == {} and not equal(averaged.average, averaged.model.state_dict())


def test_a_validation_scores_the_average_and_keeps_it():
    state, other = run(new_state()), new_state(0.0)
    other.model.load_state_dict(state.average)
    assert score(state) == score(other)
    weights = state.model.state_dict()
    with state.averaged():
        assert equal(state.model.state_dict(), other.model.state_dict())
    record_validation(state, score(state), Params())
    assert equal(state.best_weights, state.average) and equal(state.weights(), state.average)
    other.model.load_state_dict(weights)
    assert score(state) != score(other)


def test_a_validation_that_fails_puts_the_weights_back():
    state = run(new_state())
    before = state.digest()
    with pytest.raises(DivergedError), state.averaged():
        raise DivergedError("in the middle")
    assert state.digest() == before


@pytest.mark.parametrize("stop", [0, 1, 7])
def test_an_interrupted_run_ends_with_the_bits_of_the_average_of_an_undisturbed_one(tmp_path, stop):
    undisturbed, stopped = run(new_state()), run(new_state(), until=stop)
    torch.save(stopped.as_dict(), tmp_path / "state.pt")
    resumed = new_state()
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert run(resumed).digest() == undisturbed.digest() and equal(resumed.average, undisturbed.average)


def test_the_last_bit_of_any_number_of_the_average_changes_the_digest():
    state = run(new_state())
    saved, before = state.as_dict(), state.digest()
    assert digest_of(named_tensors(saved)) == before
    assert digest_of(named_tensors({**saved, "average": {}})) == run(new_state(0.0)).digest() != before
    for tensor in saved["average"].values():
        for position in {0, tensor.numel() // 2, tensor.numel() - 1}:
            tensor.view(-1).view(torch.int32)[position] ^= 1
            assert state.digest() != before
            tensor.view(-1).view(torch.int32)[position] ^= 1
    assert state.digest() == before


@pytest.mark.parametrize("decay", [2 / 11, 0.5, 0.98, 0.9995])
def test_an_update_has_the_same_bits_for_any_threads_and_any_place_in_a_tensor(decay):
    """Torch takes some numbers eight at a time and the others alone: which, depends on threads and on the place."""
    generator = torch.Generator().manual_seed(2)
    average, weights = (torch.randn(300_007, generator=generator) for _ in range(2))
    whole = average.lerp(weights, 1 - decay)
    pieces = [0, 1, 8, 77_777, 250_001, 300_007]
    split = [average[a:b].clone().lerp_(weights[a:b], 1 - decay) for a, b in itertools.pairwise(pieces)]
    alone = [average[i].clone().lerp_(weights[i], 1 - decay) for i in range(500)]
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert torch.equal(average.clone().lerp_(weights, 1 - decay), whole)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat(split), whole) and torch.equal(torch.stack(alone), whole[:500])


def test_the_average_needs_the_memory_of_the_weights():
    without, averaged = (estimate_memory_bytes(10**6, CONFIG, 128, 64, 2, averaged) for averaged in (False, True))
    assert averaged - without == 4 * 10**6 // 2
