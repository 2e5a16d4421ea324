"""The digest of a state: any bit of weights and optimizers counts, and so do names, shapes and dtypes."""

import numpy as np
import pytest
import torch

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.machine import computed_on
from lm.train.optimizers import build_optimizers
from lm.train.ranks import World
from lm.train.state import DIGEST_DIGITS, History, TrainingState, digest_of, named_tensors
from support.model_cases import optimizer_params
from support.workspace import MICRO_MODEL


def state_after_a_step(optimizer="muon"):
    """A state whose optimizers hold tensors."""
    torch.manual_seed(3)
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
    model.init_weights(torch.Generator().manual_seed(1))
    state = TrainingState(model, build_optimizers(model, optimizer_params(optimizer), torch.float32))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for each in state.optimizers:
        each.step()
    return state


def flip_last_bit(tensor, position):
    """Change one float32 number by one unit in the last place."""
    tensor.detach().view(-1).view(torch.int32)[position] ^= 1


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_digest_covers_all_weights_and_all_tensors_of_the_optimizers(optimizer):
    saved = state_after_a_step(optimizer).as_dict()

    named = dict(named_tensors(saved))

    tensors = list(saved["model"].values())
    for of_optimizer in saved["optimizers"]:
        for of_parameter in of_optimizer["state"].values():
            tensors += of_parameter.values()
    assert {id(tensor) for tensor in named.values()} == {id(tensor) for tensor in tensors}


def test_the_last_bit_of_any_number_changes_the_digest():
    tensors = dict(named_tensors(state_after_a_step().as_dict()))
    before = digest_of(tensors.items())
    rng = np.random.default_rng(5)
    found = set()

    for name, tensor in tensors.items():
        some_between = rng.integers(tensor.numel(), size=2).tolist()
        for position in {0, tensor.numel() - 1, *some_between}:
            flip_last_bit(tensor, position)
            found.add(digest_of(tensors.items()))
            flip_last_bit(tensor, position)
            assert before not in found, (name, position)

    assert len(found) > 60
    assert len(before) == DIGEST_DIGITS
    assert digest_of(tensors.items()) == before, "the tensors are as they were"


def test_names_shapes_dtypes_and_the_order_count():
    a = torch.arange(6.0)
    b = torch.ones(2, 3)
    variants = [
        [("a", a), ("b", b)],
        [("b", b), ("a", a)],  # another order
        [("b", a), ("a", b)],  # other names
        [("a", a.view(3, 2)), ("b", b)],  # another shape
        [("a", a.view(torch.int32)), ("b", b)],  # another dtype of the same bytes
        [("a", a)],
        [],
    ]

    assert len({digest_of(variant) for variant in variants}) == len(variants)


def test_a_restored_state_is_the_saved_one():
    saved = state_after_a_step()
    saved.step = 7
    saved.best_step = 5
    saved.best_loss = 2.5
    saved.interval_loss = 3.25
    saved.best_weights = {"a": torch.ones(2)}
    saved.seconds = {"training": 1.0, "validation": 2.0, "saving": 3.0}
    saved.segments = [{"from_step": 0, "threads": 1}, {"from_step": 6, "threads": 2}]
    saved.history = History([[6, 600, 0.1, 2.0, 1.0]], [[5, 500, 2.5]], ["0" * 12], [[500, 1.0, 2.0, 3.0]])

    restored = state_after_a_step()
    restored.restore(saved.as_dict())

    for name in ("step", "best_step", "best_loss", "best_weights", "interval_loss", "seconds", "segments", "history"):
        assert getattr(restored, name) == getattr(saved, name), name
    assert restored.digest() == saved.digest()


def test_only_the_main_rank_reads_whole_weights():
    state = state_after_a_step()
    main_rank = TrainingState(state.model, state.optimizers, World(0, 2))
    other_rank = TrainingState(state.model, state.optimizers, World(1, 2))

    assert main_rank.digest() == state.digest()
    assert other_rank.digest() == ""


# The machine that computes.


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("numerics", "change", "warns"),
    [
        ("fast", {"threads": 99}, True),
        ("fast", {"dtype": "bfloat16"}, True),
        ("exact", {"torch": "9.9.9"}, True),
        ("exact", {"numpy": "9.9.9"}, True),
        ("exact", {"gpu": "NVIDIA H100"}, False),
    ],
)
def test_a_run_that_continues_elsewhere_has_a_segment_and_warns_if_the_bits_may_differ(capsys, numerics, change, warns):
    here = computed_on(CPU, torch.float32, numerics)
    there = here | change

    state = state_after_a_step()
    for step, machine in ((0, here), (5, there), (8, dict(there)), (9, here)):
        state.step = step
        state.record_machine(machine)

    assert state.segments == [{"from_step": 0, **here}, {"from_step": 5, **there}, {"from_step": 9, **here}]
    assert capsys.readouterr().err.count("the bits may differ") == 2 * warns
