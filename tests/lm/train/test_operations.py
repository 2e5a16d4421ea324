"""The operations of an exact training step: look at a new one before you trust it to have the same bits everywhere.

Those of torch are named here. Those of the compiled loops are in the code that LLVM gets from numba.

An operation is exact if IEEE 754 defines each of its roundings and no order or compiler can change them: it has one
rounding for each number, moves numbers, or adds numbers whose sums are exact. torch's exp, tanh, softmax, sums, norms,
roots and random normal numbers are not: they differ between vendors, instruction sets, or numbers of threads.
"""

import dataclasses
import itertools
import os
import re
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm.model.gemma3 import Gemma3Model, ModelConfig
from lm.model.sampled_softmax import sample_vocabulary
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, update_weights
from support import ROOT
from support.workspace import MICRO_MODEL
from tools.verify.golden_run import train_params

EXACT = {
    "make, copy, view": """_local_scalar_dense _record_function_enter_new _record_function_exit
        _to_copy _unsafe_view arange cat clone detach empty empty_like expand full_like lift_fresh masked_fill_
        nan_to_num new_empty new_zeros ones ones_like roll scalar_tensor select slice split stack transpose unbind
        unsqueeze view zero_ zeros zeros_like""",
    "integers and comparisons": """_unique2 all bitwise_not cummax cumsum eq equal gt le maximum ne searchsorted
        sort sum where""",
    "one rounding for each number": """_foreach_add_ _foreach_mul _foreach_mul_ _foreach_sub_ abs add add_ clamp clamp_
        div mul mul_ neg reciprocal round sub""",
    "in float64, rounded to float32, which hides the last bit": "cos sin",
    "places": "embedding index index_fill index_select",
    "additions to places, of equal numbers, so that their order is free": "index_add",
}
REVIEWED = {name for names in EXACT.values() for name in names.split()}


class Operations(TorchDispatchMode):
    """Collect the names of the operations that torch dispatches."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if (kwargs or {}).get("alpha", 1) != 1:  # a compiler may join the multiplication with the addition
            name += " with alpha"
        if name in ("sum", "cumsum") and args[0].is_floating_point():  # the order of the additions is not defined
            name += " of floats"
        if name.startswith("div") and not isinstance(args[1], torch.Tensor):  # a GPU multiplies by its reciprocal
            name += " by a number"
        self.names.add(name)
        return func(*args, **(kwargs or {}))


def operations(document_start_id: int | None = None, **changes) -> set[str]:
    """Return the names of the operations of one step of a small model; `changes` are of the golden run's parameters."""
    small = {"seq_len": 16, "batch_tokens": 128, "micro_batch_tokens": 128}
    params = dataclasses.replace(train_params(20), **small | changes)
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50), params.numerics)
    model.init_weights(torch.Generator().manual_seed(1))
    model.document_start_id = document_start_id
    texts = {token_id: str(token_id).encode() for token_id in range(50)}
    ngrams = NgramEmbeddings(texts, 50, 16)
    state = TrainingState(model, build_optimizers(model, params, torch.float32, ngrams=ngrams))
    ids = torch.arange(8 * (params.seq_len + 1)).view(8, -1) * 7 % 50
    batch = (ids[:, :-1], ids[:, 1:])

    with Operations() as found:
        compute_gradients(state, batch, params, torch.float32)
        update_weights(state, 0.01)
    return found.names


def operations_of_all_steps(optimizer: str) -> set[str]:
    """Return the names of the operations with every setting that changes them."""
    found = operations(optimizer=optimizer, seq_len=15, batch_tokens=120, micro_batch_tokens=120)
    for micro_batch_tokens, document_start_id, size in itertools.product((128, 32), (None, 49), (None, 20)):
        found |= operations(
            document_start_id,
            optimizer=optimizer,
            micro_batch_tokens=micro_batch_tokens,
            sampled_vocab_size=size,
        )
    return found


def test_every_operation_of_a_step_was_reviewed():
    assert operations_of_all_steps("muon") == REVIEWED, "and the list has nothing that is not used"
    assert operations_of_all_steps("adamw") <= REVIEWED


PRINT_CODE = """
import importlib
import pkgutil
from lm.exact import cpu
from test_operations import operations
operations()
operations(optimizer="adamw", document_start_id=49, seq_len=32)
for module in pkgutil.iter_modules(cpu.__path__):
    loops = importlib.import_module(f"lm.exact.cpu.{module.name}")
    for name, loop in vars(loops).items():
        for code in getattr(loop, "inspect_llvm", dict)().values():
            print(code)
"""
# What rounds alike everywhere, takes a number apart, or moves it. By IEEE 754 a square root has one right result, which
# an instruction and the C library (sqrt, sqrtf) give alike.
EXACT_CALLS = {"llvm.fma", "llvm.sqrt", "sqrt", "sqrtf", "llvm.rint", "numba_frexp", "llvm.masked", "PyFloat_AsDouble"}


@pytest.mark.slow
def test_the_compiled_loops_call_no_library_and_join_no_operations(tmp_path):
    """A compiler may join or reorder what is marked fast, contract or reassoc; it is given nothing such."""
    paths = [ROOT / "src", ROOT / "tests", ROOT / "tests" / "lm" / "train"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-c", PRINT_CODE]

    code = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert re.findall(r"= f\w+ (?:fast|contract|reassoc|nnan|ninf|nsz|arcp|afn) .*", code) == []
    number = r"(?:<\d+ x )?(?:float|double)>?"
    called = set(re.findall(rf"call {number} @(llvm\.\w+|\w+)", code))
    assert {"llvm.fma"} <= called <= EXACT_CALLS


def test_an_entry_that_is_drawn_several_times_has_as_many_equal_gradients():
    """Their sum is exact in any order, and a GPU adds them in any."""
    model = Gemma3Model(ModelConfig(**MICRO_MODEL, vocab_size=50), "exact")
    model.init_weights(torch.Generator().manual_seed(1))
    model.sampling_weights[30] = 40  # about half of all odds
    ids = torch.arange(16).view(1, -1)
    draws = torch.linspace(0, 0.99, 40, dtype=torch.float64)
    chosen, _, _ = sample_vocabulary(ids.flatten(), model.sampling_weights, draws)
    gradients = []
    cross_entropy = model.cross_entropy

    def record_gradients(h, entries, *others):
        entries.register_hook(gradients.append)
        return cross_entropy(h, entries, *others)

    model.cross_entropy = record_gradients

    model.loss(ids, ids, draws).backward()

    (gradient,) = gradients
    rows = gradient[chosen == 30]
    assert len(rows) > 2
    assert rows.any()
    assert torch.equal(rows, rows[:1].expand_as(rows))
