"""The size of a run, printed before it starts: parameters, work, memory, epochs, and suspicious settings."""

import contextlib
import os
import shutil

import torch

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.core.numerics import Numerics
from lm.core.paths import PARAMS
from lm.exact.functions import kernels_on
from lm.model.gemma3 import MAX_LOGITS, ModelConfig, count_parameters, flops_per_token
from lm.model.kernels import PRODUCTS_UP_TO
from lm.model.machine import (
    available_memory_bytes,
    idle_gpu_warnings,
    is_gpu,
    is_out_of_memory,
    read_device,
    reject_emulation,
)
from lm.train.config import RunParams, TrainParams, check_lengths
from lm.train.optimizers import newton_schulz_flops
from lm.train.ranks import World

GIB = 1 << 30
PROCESS_BYTES = GIB // 2  # memory of a process: Python, torch, numba, and the code that they compile
LESS_MEMORY = (
    "lower train.micro_batch_tokens (with train.sampled_vocab_size null the losses stay the same, else another sample "
    "is drawn) or choose a smaller model.name"
)


class Plan:
    """The size of a run, from its parameters; memory is that of one rank with `micro_batch_tokens` at a time."""

    def __init__(
        self,
        params: TrainParams,
        config: ModelConfig,
        train_tokens: int,
        micro_batch_tokens: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.numerics = params.numerics
        self.num_parameters = count_parameters(config)["total"]
        self.memory_bytes = (
            (PROCESS_BYTES if device == "cpu" else 0)
            + state_bytes(self.num_parameters, device, dtype)
            + sum_bytes(self.num_parameters, params)
            + activation_bytes(config, micro_batch_tokens, params.seq_len, params.numerics, device, dtype)
            + loss_bytes(config, micro_batch_tokens, params.numerics, device, dtype)
        )
        self.max_steps = params.max_steps
        self.max_tokens = params.max_steps * params.batch_tokens
        self.train_tokens = train_tokens
        self.epochs = self.max_tokens / train_tokens
        flops = flops_per_token(config, params.seq_len, params.sampled_vocab_size)  # forward and backward pass
        self.flops_per_token = flops["total"]
        self.muon_flops_per_step = muon_flops(config) if params.optimizer == "muon" else 0.0
        self.flops_per_step = self.flops_per_token * params.batch_tokens + self.muon_flops_per_step

    def lines(self) -> list[str]:
        """Return the printed summary."""
        muon = self.muon_flops_per_step / self.flops_per_step
        return [
            f"numerics     {self.numerics}",
            f"parameters   {self.num_parameters:,}",
            f"steps        {self.max_steps:,}, {self.max_tokens:,} tokens = {self.epochs:.2f} epochs of "
            f"{self.train_tokens:,}",
            f"work         {self.flops_per_token / 1e6:.1f} MFLOP per token, "
            f"{self.flops_per_step * self.max_steps / 1e12:.1f} TFLOP in all"
            + (f", {muon:.0%} of it in Muon" if muon else ""),
            f"memory       about {self.memory_bytes / GIB:.1f} GiB",
        ]


def muon_flops(config: ModelConfig) -> float:
    """Return the FLOP of Muon in one step."""
    return float(config.n_layer * sum(newton_schulz_flops(shape) for shape in block_matrices(config)))


def block_matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """Return the shapes of the weight matrices of a block, transposed or not."""
    C = config.d_model
    F = config.d_ff
    queries = config.n_head * config.head_dim
    keys = config.n_kv_head * config.head_dim
    return [(C, queries)] * 2 + [(C, keys)] * 2 + [(C, F)] * 3


def state_bytes(num_parameters: int, device: str, dtype: torch.dtype) -> int:
    """Return the bytes that a rank holds from step to step: weights, gradients, and moments in float32.

    On a CPU, the best weights so far are added; a run on a GPU keeps them in the CPU's memory. bfloat16 adds rounded
    weights.
    """
    num_copies = 4 + (device == "cpu")
    rounded = 0 if dtype == torch.float32 else dtype.itemsize
    return num_parameters * (4 * num_copies + rounded)


def sum_bytes(num_parameters: int, params: TrainParams) -> int:
    """Return the bytes of the sums of gradients: exact numerics add several micro-batches as int64."""
    is_summed = params.numerics == "exact" and params.batch_size > params.micro_batch_size
    return 8 * num_parameters if is_summed else 0


def activation_bytes(
    config: ModelConfig, tokens: int, seq_len: int, numerics: Numerics, device: str, dtype: torch.dtype
) -> int:
    """Return the bytes that the blocks keep for the backward pass of `tokens` (tests/lm/train/test_preflight.py)."""
    C = config.d_model
    F = config.d_ff
    queries = config.n_head * config.head_dim
    keys = config.n_kv_head * config.head_dim
    # The inputs of four norms and of the matrices; queries and keys before and after their norm, values, the output of
    # attention; both parts of the gate, its gelu, and the product.
    gates = 3 if numerics == "exact" else 4
    numbers = 6 * C + 3 * queries + 3 * keys + gates * F
    # The attention of each head, where it is computed by plain products.
    if numerics == "exact" or (device == "cpu" and dtype == torch.bfloat16 and seq_len <= PRODUCTS_UP_TO):
        numbers += config.n_head * seq_len
    return config.n_layer * tokens * dtype.itemsize * numbers


def loss_bytes(config: ModelConfig, tokens: int, numerics: Numerics, device: str, dtype: torch.dtype) -> int:
    """Return the bytes of the loss: some rows of logits, on a GPU their softmax in float32, the head and its gradient.

    On a GPU the loss takes more memory if it is free in the first step (lm.model.kernels.most_logits).
    """
    if numerics == "exact":
        most_rows = kernels_on(device).loss_rows(config.vocab_size)
        softmax = 0
    else:
        most_rows = MAX_LOGITS // config.vocab_size
        softmax = 0 if device == "cpu" else 2 * 4
    rows = min(tokens, most_rows)
    return config.vocab_size * (rows * (dtype.itemsize + softmax) + config.d_model * (4 + 2 * dtype.itemsize))


def check_run(params: RunParams, world: World) -> torch.device:
    """Return the device of this process; raise ParamsError or EnvironmentFailure if these ranks cannot train the run.

    This reads no file of the run, so that a wrong parameter is found at once.
    """
    reject_unequal_rows(params.train, world)
    check_lengths(PARAMS, params.train.seq_len, params.model_name, params.model.max_seq_len)
    device = read_device(world.local_rank if world.world_size > 1 else None)
    reject_missing_compiler(params.train, device)
    reject_emulation(params.train.dtype, device)
    return device


def reject_unequal_rows(params: TrainParams, world: World) -> None:
    """Raise ParamsError if the ranks cannot take equally many rows of a batch, or cannot have the same bits."""
    if params.batch_size % world.world_size:
        batch = f"{params.batch_tokens} are {params.batch_size} sequences of train.seq_len {params.seq_len}"
        problem = f"train.batch_tokens {batch}, which {world.world_size} processes cannot divide equally"
        remedy = f"set train.num_processes of runtime.yaml to a divisor of {params.batch_size}, or change the batch"
        raise ParamsError(f"{problem}: {remedy}; micro-batches follow")
    if params.numerics == "fast":
        return
    # Exact numerics average over micro-batches, which the ranks divide among themselves.
    micro_batches = params.batch_size // params.micro_batch_size
    ranks = world.world_size
    if micro_batches % ranks:
        problem = f"train.numerics is exact: {micro_batches} micro-batches cannot be divided among {ranks} processes"
        remedy = "lower train.micro_batch_tokens, start fewer processes, or set train.numerics to fast"
        raise ParamsError(f"{problem}; {remedy}")


def available_bytes(world: World, device: torch.device) -> int:
    """Return the free bytes of memory for a rank. The ranks of a host share its memory, but each has its own GPU."""
    free_bytes = available_memory_bytes(device)
    return free_bytes // world.local_world_size if device.type == "cpu" else free_bytes


def check_memory(plan: Plan, device: str, free_bytes: int) -> list[str]:
    """Return a warning if the run may not fit into a GPU's memory, or an empty list.

    Raise EnvironmentFailure if it does not fit into the CPU's memory: the kernel would kill it without a message.
    """
    if plan.memory_bytes <= free_bytes:
        return []
    needed = plan.memory_bytes / GIB
    free = free_bytes / GIB
    problem = f"the run needs about {needed:.1f} GiB, {free:.1f} GiB are free"
    if device == "cpu":
        raise EnvironmentFailure(f"{problem}; {LESS_MEMORY}")
    return [f"{problem} on the GPU; if it does not fit, {LESS_MEMORY}"]


def reject_missing_compiler(params: TrainParams, device: torch.device) -> None:
    """Raise EnvironmentFailure if this machine lacks a compiler that the run needs.

    Triton, which compiles the kernels of a GPU, needs a C compiler. On a CPU, torch.compile needs a C++ compiler.
    """
    if params.compile:
        why = "train.compile is true"
        remedy = "or set train.compile to false"
    else:
        why = "train.numerics is exact on a GPU"
        remedy = "or set device in runtime.yaml to cpu"
    needed = []
    if is_gpu(device) and (params.compile or params.numerics == "exact"):
        needed.append(("C", "CC", ("gcc", "clang")))
    if params.compile:
        needed.append(("C++", "CXX", ("g++", "clang++", "c++")))
    for language, variable, names in needed:
        if not any(name and shutil.which(name) for name in (os.environ.get(variable), *names)):
            problem = f"{why}, and no {language} compiler was found ({variable}, {', '.join(names)})"
            raise EnvironmentFailure(f"{problem}; install one, such as `apt install {names[0]}`, {remedy}")


def warnings(plan: Plan, params: TrainParams, config: ModelConfig) -> list[str]:
    """Return warnings about valid but suspicious settings, and about an idle GPU."""
    messages = idle_gpu_warnings()
    seq_len = params.seq_len
    if config.sliding_window >= seq_len and config.full_attention_every > 1:
        wide = f"the model's sliding_window {config.sliding_window} is not shorter than train.seq_len {seq_len}"
        messages.append(f"{wide}: sliding attention is never active, every layer sees the whole context")
    if plan.epochs > 8:
        messages.append(f"train.max_tokens is {plan.epochs:.1f} epochs of the training file: expect overfitting")
    return messages


@contextlib.contextmanager
def explain_out_of_memory():
    """Turn torch's failed allocations into an EnvironmentFailure that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise EnvironmentFailure(f"out of memory in a training step; {LESS_MEMORY}") from None
        raise
