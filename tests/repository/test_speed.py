"""Check what keeps the pipeline fast by counts, bytes and ratios, which depend little on the machine.

Raise a limit here in the commit that explains why it grows. benchmarks/ measures times.
"""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lm.model import exact
from lm.model.config import Numerics
from lm.model.gemma3 import MAX_LOGITS, Gemma3Model, ModelConfig
from lm.train.optimizers import build_optimizers
from support import ROOT
from support.model_cases import optimizer_params

CONFIG = ModelConfig(
    n_layer=2, n_head=4, n_kv_head=2, head_dim=16, d_model=64, d_ff=128, sliding_window=16, full_attention_every=2,
    rope_base_local=10_000.0, rope_base_global=10_000.0, query_pre_attn_scalar=16, norm_eps=1e-6, max_seq_len=64,
    vocab_size=1000,
)  # fmt: skip
BATCH, SEQ_LEN, LOGITS_CHUNK = 8, 32, 64
TOKENS = BATCH * SEQ_LEN
NOT_IMPORTED = {
    "datasets", "dvc", "huggingface_hub", "pandas", "pyarrow", "requests", "tiktoken", "tokenizers", "transformers",
    "torch._dynamo", "torch._inductor",
}  # fmt: skip


# Training steps.


class Operations(TorchDispatchMode):
    """Count the operations that torch dispatches and the elements of the largest tensor they return."""

    def __init__(self):
        super().__init__()
        self.count = self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        self.count += 1
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor):
                self.largest = max(self.largest, part.numel())
        return result


def new_model(numerics: Numerics) -> tuple[Gemma3Model, torch.Tensor, torch.Tensor]:
    """Return a small model with inputs and targets (B, T)."""
    model, generator = Gemma3Model(CONFIG, numerics), torch.Generator().manual_seed(0)
    model.init_weights(generator)
    ids = torch.randint(CONFIG.vocab_size, (BATCH, SEQ_LEN + 1), generator=generator)
    return model, ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize(("dtype", "most", "update"), [(torch.float32, 5500, 6500), (torch.bfloat16, 1000, 600)])
def test_the_operations_of_a_step_are_counted(dtype, most, update):
    """Operations dominate small models. The (B·T, V) logits never exist at once, forward or backward."""
    numerics: Numerics = "exact" if dtype == torch.float32 else "fast"
    model, x, y = new_model(numerics)
    with Operations() as found, torch.autocast("cpu", dtype, enabled=numerics == "fast"):
        model.loss(x, y, max_logits=LOGITS_CHUNK * CONFIG.vocab_size).backward()
    assert found.count <= most
    assert found.largest <= LOGITS_CHUNK * (CONFIG.vocab_size + exact.BLOCK) < TOKENS * CONFIG.vocab_size
    for optimizer in build_optimizers(model, optimizer_params(numerics=numerics), dtype):
        with Operations() as found:
            optimizer.step()
        assert found.count <= update


@pytest.mark.parametrize("vocab_size", [50_257, 262_144])
def test_the_logits_of_the_loss_are_bounded_whatever_the_vocabulary(vocab_size):
    """Fake tensors have a shape and need no memory."""
    with FakeTensorMode():
        model = Gemma3Model(dataclasses.replace(CONFIG, vocab_size=vocab_size), "exact")
        ids = torch.zeros(16, 64, dtype=torch.int64)
        with Operations() as found:
            model.loss(ids, ids).backward()
    rows = min(MAX_LOGITS // vocab_size, exact.CROSS_ENTROPY_ROWS)
    padded = -(-vocab_size // exact.BLOCK) * exact.BLOCK
    assert found.largest == rows * padded <= MAX_LOGITS == 512 * 262_144


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 6200), (torch.bfloat16, 4200)])
def test_memory_kept_for_the_backward_pass_is_bounded(dtype, most):
    """Limit the bytes per token and layer. They include gradients of the head, computed in the forward pass."""
    model, x, y = new_model("exact" if dtype == torch.float32 else "fast")
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() if storage.data_ptr() not in weights else 0
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = model.loss(x, y, max_logits=LOGITS_CHUNK * CONFIG.vocab_size)
    assert loss.requires_grad and sum(kept.values()) <= most * TOKENS * CONFIG.n_layer


# Processes.


def test_the_train_stage_imports_no_slow_package():
    """Each of them would delay the start of every run."""
    code = f"import sys, train; print(*({NOT_IMPORTED!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
