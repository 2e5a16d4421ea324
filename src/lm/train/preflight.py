"""The size of a run, printed before it starts: parameters, work, memory, epochs, and suspicious settings."""

import contextlib

from lm.core.errors import EnvironmentFailure, ParamsError
from lm.core.params import read_section
from lm.model.device import idle_gpu_warnings, is_out_of_memory
from lm.model.gemma3 import MAX_LOGITS, ModelConfig, count_parameters, flops_per_token
from lm.train.config import TrainParams
from lm.train.optimizers import newton_schulz_flops
from lm.train.ranks import World

GIB = 1 << 30
LESS_MEMORY = (
    "lower train.micro_batch_tokens (with train.sampled_vocab_size null the losses stay the same, else another sample "
    "is drawn) or choose a smaller model.name"
)


class Plan:
    """Figures derived from the parameters; memory is that of a rank that takes `micro_batch_tokens` at a time."""

    def __init__(
        self, params: TrainParams, config: ModelConfig, train_tokens: int, micro_batch_tokens: int, num_shards: int = 1
    ):
        self.numerics = params.numerics
        self.num_parameters = count_parameters(config)["total"]
        self.memory_bytes = estimate_memory_bytes(
            self.num_parameters, config, micro_batch_tokens, params.seq_len, num_shards
        )
        self.max_steps, self.max_tokens = params.max_steps, params.max_steps * params.batch_tokens
        self.train_tokens, self.epochs = train_tokens, self.max_tokens / train_tokens
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
    C, F = config.d_model, config.d_ff
    queries, keys = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    return [(C, queries)] * 2 + [(C, keys)] * 2 + [(C, F)] * 3


def estimate_memory_bytes(
    num_parameters: int, config: ModelConfig, tokens: int, seq_len: int, num_shards: int = 1
) -> int:
    """Return a rough upper estimate of the memory in bytes of a rank that takes `tokens` at a time.

    Weights, gradients, two AdamW moments and the best weights in float32, of which a rank has its shard; the whole head
    and its gradient; about 16 d_model + 6 d_ff float32 activations and the scores of every head to seq_len tokens, per
    token and block; a chunk of logits.
    """
    states = 5 * 4 * num_parameters // num_shards
    if num_shards > 1:
        states += 8 * config.vocab_size * config.d_model
    activations = 4 * config.n_layer * (16 * config.d_model + 6 * config.d_ff + config.n_head * seq_len) * tokens
    rows = min(tokens, MAX_LOGITS // config.vocab_size)
    head = 4 * config.vocab_size * (3 * rows + config.d_model)
    return states + activations + head


def refuse_unequal_rows(params: TrainParams, world: World) -> None:
    """Raise ParamsError if the ranks cannot take equally many rows of a batch, or cannot have the same bits."""
    if params.batch_size % world.world_size:
        batch = f"{params.batch_tokens} are {params.batch_size} sequences of train.seq_len {params.seq_len}"
        problem = f"train.batch_tokens {batch}, which {world.world_size} processes cannot divide equally"
        remedy = f"set train.num_processes of runtime.yaml to a divisor of {params.batch_size}, or change the batch"
        raise ParamsError(f"{problem}: {remedy}; micro-batches follow")
    if params.numerics == "fast":
        return
    if world.sharded:
        problem = "train.numerics is exact, and train.shard of runtime.yaml is true: sharded weights have other bits"
        raise ParamsError(f"{problem}; set train.numerics to fast, or train.shard to false")
    # Exact numerics average over micro-batches, which the ranks divide among themselves.
    micro_batches, ranks = params.batch_tokens // params.micro_batch_tokens, world.world_size
    if micro_batches % ranks:
        problem = f"train.numerics is exact: {micro_batches} micro-batches cannot be divided among {ranks} processes"
        remedy = "lower train.micro_batch_tokens, start fewer processes, or set train.numerics to fast"
        raise ParamsError(f"{problem}; {remedy}")


def refuse_sharded_muon(params: TrainParams, world: World) -> None:
    """Raise ParamsError if the weights are sharded and Muon, which needs whole matrices, is to update them."""
    if world.sharded and params.optimizer == "muon":
        problem = "train.optimizer is muon, and train.shard of runtime.yaml is true: Muon needs whole matrices"
        raise ParamsError(f"{problem}; set train.optimizer to adamw, or train.shard to false")


def check_lengths(file: str, seq_len: int, model_name: str, max_seq_len: int) -> None:
    """Raise ParamsError if the model's context is too short for training or for the samples of the evaluation."""
    tokens = read_section(file, "eval.sample_tokens", int)
    longest = f"models.{model_name}.max_seq_len {max_seq_len} of presets.yaml"
    for ok, name, value, requirement in (
        (seq_len <= max_seq_len, "train.seq_len", seq_len, f"at most {longest}"),
        (tokens < max_seq_len, "eval.sample_tokens", tokens, f"1 or more, below {longest}, to hold a prompt too"),
    ):
        if not ok:
            raise ParamsError(f"{file}: {name} is {value}, needed: {requirement}")


def refuse_too_large(plan: Plan, available_bytes: int) -> None:
    """Raise EnvironmentFailure if the run does not fit into memory; the kernel would kill it without a message."""
    if plan.memory_bytes > available_bytes:
        needed, free = plan.memory_bytes / GIB, available_bytes / GIB
        raise EnvironmentFailure(f"the run needs about {needed:.1f} GiB, {free:.1f} GiB are free; {LESS_MEMORY}")


def warnings(plan: Plan, params: TrainParams, config: ModelConfig) -> list[str]:
    """Return warnings about valid but suspicious settings, and a GPU that stays idle."""
    messages, seq_len = idle_gpu_warnings(params.numerics), params.seq_len
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
