"""Train some steps, and digest the operations of the first one and the weights; name the first digest that differs."""

import hashlib

import torch
from torch import Tensor
from tqdm import tqdm

from lm.core.errors import IntegrityError
from lm.exact.threads import ThreadTuner
from lm.model.gemma3 import Gemma3Model
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from lm.train.state import TrainingState
from lm.train.step import compute_gradients, learning_rate, prefetch, update_weights

Digests = dict[str, dict[str, str]]


def digest(tensor: Tensor) -> str:
    """Return 12 hex digits of the SHA-256 of a tensor's bytes."""
    numbers = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(numbers.data).hexdigest()[:12]


def digest_steps(
    state: TrainingState,
    windows: TokenWindows,
    params: TrainParams,
    dtype: torch.dtype,
    num_steps: int,
    weights_every: int,
    threads: ThreadTuner,
) -> Digests:
    """Train `num_steps` steps; return {"first step": {operation: digest}, "weights": {step: digest}}.

    The operations are the modules, the gradients and the updates, in their order. The weights are digested after each
    `weights_every` steps.
    """
    operations: dict[str, str] = {}
    weights: dict[str, str] = {}
    batches = prefetch(windows, range(num_steps), state.model.device)
    for step in tqdm(range(num_steps), unit="step", disable=None, leave=False):
        threads.adapt()
        if step == 0:
            operations = digest_step(state, next(batches), params, dtype)
        else:
            compute_gradients(state, next(batches), params, dtype)
            update_weights(state, learning_rate(step, params))
        if (step + 1) % weights_every == 0:
            weights[str(step + 1)] = digest(torch.cat([p.flatten() for p in state.model.parameters()]))
    return {"first step": operations, "weights": weights}


def digest_step(
    state: TrainingState, batch: tuple[Tensor, Tensor], params: TrainParams, dtype: torch.dtype
) -> dict[str, str]:
    """Train one step on a batch of inputs and targets (B, T) int64; return the digests of its operations by name."""
    model = state.model
    digests: dict[str, str] = {}

    # The outputs of the modules, then the gradients, from the output to the input, as they are computed.
    hooks = record_forward(model, digests)
    compute_gradients(state, batch, params, dtype)
    for hook in hooks:
        hook.remove()
    parameters = [*model.named_parameters()][::-1]
    digests |= {f"gradient of {name}": digest(p.grad) for name, p in parameters if p.grad is not None}

    # The updated weights.
    update_weights(state, learning_rate(state.step, params))
    return digests | {f"update of {name}": digest(p) for name, p in parameters}


def record_forward(model: Gemma3Model, digests: dict[str, str]) -> list:
    """Digest the output of every module of the next forward passes; return the hooks that do it."""

    def hook(name: str):
        """Return a hook that records under this name."""

        def record(module, inputs, output: Tensor) -> None:
            """Add the digest under a name that tells the micro-batches apart."""
            number = sum(known.endswith(f": {name}") for known in digests) + 1
            digests[f"micro-batch {number}: {name}"] = digest(output)

        return record

    return [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name.count(".") > 1]


def last_weights(found: Digests) -> str:
    """Return the digest of the weights after the last step."""
    return list(found["weights"].values())[-1]


def check_expected(found: Digests, expected: str) -> None:
    """Raise IntegrityError unless the digest of the last weights begins with `expected`."""
    if not last_weights(found).startswith(expected):
        raise IntegrityError(f"the last weights have the digest {last_weights(found)}; --expect is {expected}")
    print(f"same bits as expected: weights {last_weights(found)}")


def first_difference(found: Digests, golden: Digests) -> str | None:
    """Return what differs first from the committed digests `golden`, or None."""
    for operation, known in golden["first step"].items():
        if found["first step"].get(operation) != known:
            return f"the first step differs in: {operation}"
    before = 1
    for step, known in golden["weights"].items():
        if found["weights"].get(step) != known:
            is_next = int(step) <= before + 1
            where = f"after step {step}" if is_next else f"between steps {before} and {step}"
            return f"the first step has the committed bits, the weights first differ {where}"
        before = int(step)
    return None
