"""The operations of a portable training step: look at a new one before you trust it to have the same bits everywhere.

An operation is portable if its result does not depend on the number of threads, and it comes from torch's own kernels,
which are pinned to AVX2, or is a product in the fixed order (lm.model.products). A sum of a whole large tensor is not:
each thread adds a part of it. Nor are torch's products (MKL chooses its code by the vendor) and torch's gelu.
"""

import dataclasses
import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm.model import products
from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.tokens.windows import TokenWindows
from lm.train.optimizers import build_optimizers
from lm.train.spelling import Spelling
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, update_weights
from support.workspace import MICRO_MODEL
from tools.prove.golden_run import SMALL, make_ids, train_params

pytestmark = pytest.mark.skipif(not products.is_available(), reason="needs an x86-64 processor with AVX2")
PORTABLE = {
    "make, copy, view": """_local_scalar_dense _record_function_enter_new _record_function_exit
        _sparse_coo_tensor_with_dims_and_tensors _to_copy _unsafe_view arange cat clone constant_pad_nd copy_ detach
        empty_like expand fill_ lift_fresh new_empty_strided new_zeros ones_like permute repeat roll select slice
        split stack transpose unbind unsqueeze view zero_ zeros zeros_like""",
    "integers and comparisons": "_unique2 bitwise_and bitwise_not cumsum eq equal ge lt searchsorted",
    "each number by itself": """_foreach_add_ _foreach_mul_ _fused_adamw_ add add_ addcmul addcmul_ clamp clamp_ cos
        div div_ lerp lerp_ log masked_fill_ mul mul_ neg pow reciprocal rsqrt rsub sin sub tanh_""",
    "a row, or one whole tensor, by one thread": """_foreach_norm _softmax _softmax_backward_data amax
        linalg_vector_norm mean""",
    "sums over rows by column, or of the numbers of a row, by one thread": "sum",
    "places": "embedding gather index index_fill",
    "additions to places, one after the other": "_embedding_bag _embedding_bag_forward_only index_put scatter_add_",
    "products in the fixed order": "_linear_pointwise",
}
REVIEWED = {name for names in PORTABLE.values() for name in names.split()}


class Operations(TorchDispatchMode):
    """Collect the names of the operations that torch dispatches."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operations(document_start_id: int | None = None, **changes) -> set[str]:
    """Return the names of the operations of one step of a small model; `changes` are of the golden run's parameters."""
    params = dataclasses.replace(train_params(20), seq_len=16, batch_tokens=128, micro_batch_tokens=128)
    params = dataclasses.replace(params, **changes)
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50))
    model.init_weights(torch.Generator().manual_seed(1))
    model.document_start_id = document_start_id
    spelling = Spelling({number: str(number).encode() for number in range(50)}, 50, 16)
    state = TrainingState(model, build_optimizers(model, params, torch.float32, spelling=spelling))
    ids = torch.arange(8 * (params.seq_len + 1)).view(8, -1) * 7 % 50
    with Operations() as found:
        compute_gradients(state, (ids[:, :-1], ids[:, 1:]), params, torch.float32)
        update_weights(state, 0.01)
    return found.names


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_every_operation_of_a_step_was_reviewed(optimizer):
    found = set()
    for micro_batch_tokens, document_start_id, size in itertools.product((128, 32), (None, 49), (None, 20)):
        found |= operations(
            optimizer=optimizer, micro_batch_tokens=micro_batch_tokens, document_start_id=document_start_id,
            sampled_vocab_size=size,
        )  # fmt: skip
    found |= operations(optimizer=optimizer, seq_len=15, batch_tokens=120, micro_batch_tokens=120)
    assert found - REVIEWED == set()
    # The list has nothing that is not used. `fill_` depends on the machine.
    assert optimizer == "adamw" or REVIEWED - found <= {"fill_"}


def test_an_operation_that_was_not_reviewed_is_found(monkeypatch):
    monkeypatch.setattr("lm.model.gemma3.gated_gelu", lambda gate, up: torch.nn.functional.gelu(gate) * up)
    assert operations() - REVIEWED == {"gelu", "gelu_backward"}
    monkeypatch.setattr(products, "is_available", lambda: False)
    assert {"mm", "bmm"} & operations()


def weights_of(threads: int, seq_len: int, num_steps: int) -> list[torch.Tensor]:
    """Return the weights after the first steps of a small model, computed by `threads` threads."""
    params = dataclasses.replace(
        train_params(20, 700), seq_len=seq_len, batch_tokens=2 * seq_len, micro_batch_tokens=seq_len,
        max_tokens=40 * seq_len,
    )  # fmt: skip
    windows = TokenWindows(make_ids(SMALL.vocab_size), seq_len, params.batch_size, params.seed)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = Gemma3Model(dataclasses.replace(SMALL, sliding_window=4))
        model.init_weights(torch.Generator().manual_seed(1))
        state = TrainingState(model, build_optimizers(model, params, torch.float32))
        for step in range(num_steps):
            compute_gradients(state, tuple(map(torch.from_numpy, windows.batch(step))), params, torch.float32)
            update_weights(state, 0.01)
    finally:
        torch.set_num_threads(before)
    return list(model.parameters())


@pytest.mark.parametrize("seq_len", [63, 128, 257])
def test_a_step_has_the_same_bits_for_any_number_of_threads(seq_len):
    one = weights_of(1, seq_len, 1)
    for threads in (2, 3):
        assert all(map(torch.equal, one, weights_of(threads, seq_len, 1))), threads


def test_twelve_steps_have_the_same_bits_for_two_threads():
    assert all(map(torch.equal, weights_of(1, 100, 12), weights_of(2, 100, 12)))
