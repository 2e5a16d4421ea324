"""Compile a model for a GPU that is not there; print a line of JSON for training and one for validation.

    PYTHONPATH=src:benchmarks python -m absent_gpu.model 90 gpt2_size

The capability is one of device.CARDS, the model one of MODELS. Both are compiled without documents, then with them.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from absent_gpu import device


class Size(NamedTuple):
    """The vocabulary and the micro-batch with which a preset is compiled: those of benchmarks/speed/gpu.py."""

    vocab_size: int
    batch_size: int
    seq_len: int


MODELS = {
    "tiny": Size(16_384, 256, 256),
    "small": Size(16_384, 16, 512),
    "gpt2_size": Size(50_257, 32, 1024),
    "gemma3_270m": Size(262_144, 16, 1024),
}
KINDS = ("own", "attention forward", "attention backward")
NUMBERS = ("registers", "spilled_bytes", "shared_bytes")


def compile_passes(capability: int, preset: str) -> None:
    """Compile what a micro-batch of training needs, and what a validation needs."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from absent_gpu.inductor import Compiler
    from lm.model.score import token_losses

    torch.nn.functional.scaled_dot_product_attention = attention_of_gpu
    compiler = Compiler(capability)
    size = MODELS[preset]
    for keeps_to_document in (False, True):
        torch._dynamo.reset()
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = build_model(preset, size.vocab_size)
            model.document_start_id = 0 if keeps_to_document else None
            model.compile(fullgraph=True)
            ids = torch.zeros(size.batch_size, size.seq_len, dtype=torch.int64, device="cuda")

            with torch.autocast("cuda", torch.bfloat16):
                loss = model.loss(ids, ids)
            loss.backward()
            print_counts(compiler, documents=keeps_to_document, compiled="training")
            with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
                token_losses(model, ids, ids)
            print_counts(compiler, documents=keeps_to_document, compiled="validation")


def build_model(preset: str, vocab_size: int):
    """Return a model whose weights are fakes on the GPU."""
    import torch

    from lm.core.params import read_section
    from lm.model.config import ModelParams
    from lm.model.gemma3 import Gemma3Model

    model = Gemma3Model(read_section("presets.yaml", f"models.{preset}", ModelParams).config(vocab_size))
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(weight.detach().to("cuda")))
    return model


def attention_of_gpu(q, k, v, mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Take the place of torch's choice, which asks a GPU's driver, among the fused kernels."""
    import torch

    aten = torch.ops.aten
    if mask is None:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[0]
    bias = mask.expand(*q.shape[:3], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, q.requires_grad, 0.0, False, scale=scale)[0]


def print_counts(compiler, **names) -> None:
    """Print the counts since the last call: each graph, and the most that a kernel of each kind takes."""
    most = {}
    for kind in KINDS:
        kernels = [kernel for kernel in compiler.kernels if kernel["kernel"] == kind]
        if kernels:
            most[kind] = {number: max(kernel[number] for kernel in kernels) for number in NUMBERS}
    print(json.dumps(names | {"graphs": compiler.graphs, "most": most}), flush=True)
    compiler.graphs = []
    compiler.kernels = []


def main() -> None:
    """Compile for the capability and the preset of the command line."""
    capability = int(sys.argv[1])
    preset = sys.argv[2]
    with tempfile.TemporaryDirectory() as folder:
        # Nothing else may find what is compiled here.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        os.environ["TRITON_CACHE_DIR"] = folder
        device.pretend(capability, Path(folder))
        compile_passes(capability, preset)


if __name__ == "__main__":
    main()
