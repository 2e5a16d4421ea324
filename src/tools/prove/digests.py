"""Train some steps, and digest the operations of the first one and the weights; name the first digest that differs."""

import collections
import hashlib
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker
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
    with _disable_current_modes():
        numbers = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(numbers.data).hexdigest()[:12]


class Operations(TorchDispatchMode):
    """Digest the first result of each operation of torch, under its name, where it ran, and the number of the call.

    It does not see the compiled loops of exact numerics. Two kinds of results are left out: views, which compute
    nothing, and new memory, whose content is random. `place` names where an operation runs that no module calls.
    """

    def __init__(self, model: Gemma3Model, digests: dict[str, str], place: str):
        super().__init__()
        self.digests = digests
        self.place = place
        self.modules = ModuleTracker()
        self.modules._get_mod_name(model)  # the names of all modules begin at the model
        self.forward_places: dict[int, str] = {}  # of each node of autograd by its number
        self.calls: collections.Counter[str] = collections.Counter()

    def __enter__(self):
        self.modules.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.modules.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = f"{func.overloadpacket} {self.current_place()}"
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.layout == torch.strided]
        if tensors and not func.is_view and "empty" not in func.overloadpacket.__name__:
            self.calls[name] += 1
            self.digests[f"{name}, call {self.calls[name]}"] = digest(tensors[0])
        return result

    def current_place(self) -> str:
        """Return where the current operation runs; of the backward pass, where the forward pass called for it."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return f"{self.forward_places.get(node._sequence_nr(), self.place)} (backward)"
        innermost = max(self.modules.parents, key=len)
        module = innermost.partition(".")[2]
        place = f"in {module}" if module else self.place
        newest_node = torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]
        self.forward_places[newest_node] = place
        return place


def digest_steps(
    state: TrainingState,
    windows: TokenWindows,
    params: TrainParams,
    dtype: torch.dtype,
    num_steps: int,
    weights_every: int,
    threads: ThreadTuner,
    with_operations: bool,
) -> Digests:
    """Train `num_steps` steps; return {"first step": {operation: digest}, "weights": {step: digest}}.

    The operations are in their order. `with_operations` adds those of torch to the modules, gradients and updates. The
    weights are digested after each `weights_every` steps.
    """
    operations: dict[str, str] = {}
    weights: dict[str, str] = {}
    batches = prefetch(windows, range(num_steps), state.model.device)
    for step in tqdm(range(num_steps), unit="step", disable=None, leave=False):
        threads.adapt()
        if step == 0:
            operations = digest_step(state, next(batches), params, dtype, with_operations)
        else:
            compute_gradients(state, next(batches), params, dtype)
            update_weights(state, learning_rate(step, params))
        if (step + 1) % weights_every == 0:
            weights[str(step + 1)] = digest(torch.cat([p.flatten() for p in state.model.parameters()]))
    return {"first step": operations, "weights": weights}


def digest_step(
    state: TrainingState,
    batch: tuple[Tensor, Tensor],
    params: TrainParams,
    dtype: torch.dtype,
    with_operations: bool,
) -> dict[str, str]:
    """Train one step on a batch of inputs and targets (B, T) int64; return the digests of its operations by name."""
    model = state.model
    digests: dict[str, str] = {}

    def operations(place: str) -> AbstractContextManager:
        """Return a context in which the operations of torch are digested, if they are asked for."""
        return Operations(model, digests, place) if with_operations else nullcontext()

    # The outputs of the modules, then the gradients, from the output to the input, as they are computed.
    hooks = record_forward(model, digests)
    with operations("outside the modules"):
        compute_gradients(state, batch, params, dtype)
    for hook in hooks:
        hook.remove()
    parameters = [*model.named_parameters()][::-1]
    digests |= {f"gradient of {name}": digest(p.grad) for name, p in parameters if p.grad is not None}

    # The updated weights.
    with operations("in the update"):
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


def first_difference(found: Digests, golden: Digests, whose: str) -> str | None:
    """Return what differs first from the digests `golden`, whose bits are called "the {whose} bits", or None."""
    for operation, known in golden["first step"].items():
        if found["first step"].get(operation) != known:
            return f"the first step differs in: {operation}"
    before = 1
    for step, known in golden["weights"].items():
        if found["weights"].get(step) != known:
            is_next = int(step) <= before + 1
            where = f"after step {step}" if is_next else f"between steps {before} and {step}"
            return f"the first step has the {whose} bits, the weights first differ {where}"
        before = int(step)
    return None
