"""The digest of a state: any bit of weights and optimizers counts, and so do names, shapes and dtypes."""

import pytest
import torch

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.machine import computed_on
from lm.train.optimizers import build_optimizers
from lm.train.state import History, TrainingState, digest_of, named_tensors
from support.model_cases import optimizer_params
from support.workspace import MICRO_MODEL


def state_after_a_step(seed=1):
    """A state whose optimizers, Muon and AdamW, hold tensors."""
    torch.manual_seed(seed)
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
    model.init_weights(torch.Generator().manual_seed(seed))
    state = TrainingState(model, build_optimizers(model, optimizer_params("muon"), torch.float32))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for each in state.optimizers:
        each.step()
    return state


def flip_last_bit(tensor, position):
    """Change one float32 number by one unit in the last place."""
    tensor.detach().view(-1).view(torch.int32)[position] ^= 1


def test_a_digest_covers_all_weights_and_all_tensors_of_the_optimizers():
    saved = state_after_a_step().as_dict()

    named = dict(named_tensors(saved))

    tensors = list(saved["model"].values())
    for of_optimizer in saved["optimizers"]:
        for of_parameter in of_optimizer["state"].values():
            tensors += of_parameter.values()
    assert {id(tensor) for tensor in named.values()} == {id(tensor) for tensor in tensors}


def test_the_last_bit_of_any_number_changes_the_digest():
    tensors = dict(named_tensors(state_after_a_step().as_dict()))
    before = digest_of(tensors.items())

    for name, tensor in tensors.items():
        for position in (0, tensor.numel() // 2, -1):
            flip_last_bit(tensor, position)
            assert digest_of(tensors.items()) != before, (name, position)
            flip_last_bit(tensor, position)

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
    ]

    assert len({digest_of(variant) for variant in variants}) == len(variants)


def test_a_restored_state_is_the_saved_one():
    values = {
        "step": 7,
        "best_step": 5,
        "best_loss": 2.5,
        "interval_loss": 3.25,
        "best_weights": {"a": torch.ones(2)},
        "seconds": {"training": 1.0, "validation": 2.0, "saving": 3.0},
        "segments": [{"from_step": 0, "threads": 1}, {"from_step": 6, "threads": 2}],
        "history": History([[6, 600, 0.1, 2.0, 1.0]], [[5, 500, 2.5]], ["0" * 12], [[500, 1.0, 2.0, 3.0]]),
    }
    original = state_after_a_step(seed=2)
    for name, value in values.items():
        setattr(original, name, value)
    saved = original.as_dict()
    restored = state_after_a_step()

    restored.restore(saved)

    assert {name: getattr(restored, name) for name in values} == values
    assert restored.digest() == original.digest()
    assert torch.equal(torch.get_rng_state(), saved["rng"])


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
