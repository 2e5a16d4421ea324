"""Write docs/exact_order.md from lm.exact.order: the rules, constants, operations and test vectors of exact numerics.

    PYTHONPATH=src:benchmarks python benchmarks/exact_order.py

A test checks that the page is up to date.
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from lm.core.files import write_text
from lm.exact import order
from result import ROOT

PAGE = ROOT / "docs" / "exact_order.md"

# Inputs that every language can compute exactly.


def x(start: int, *shape: int) -> np.ndarray:
    """Return float32 numbers from -2 to 2 of 24 bits each."""
    i = np.arange(np.prod(shape), dtype=np.int64)
    integers = (i * 7654321 + start) % 16777213 - 8388606
    return np.float32(integers / 4194304).reshape(shape)


def ids(number: int, *shape: int) -> np.ndarray:
    """Return integers from 0 to number - 1."""
    i = np.arange(np.prod(shape), dtype=np.int64)
    return (i * 7919 + 13) % number


def first(B: int, T: int, S: int, window: int) -> np.ndarray:
    """Return the first position (B, T) that each query sees."""
    position = np.arange(S - T, S, dtype=np.int32)
    return np.tile(np.maximum(0, position - (window - 1)), (B, 1))


def weights(B: int, H: int, T: int) -> np.ndarray:
    """Return weights (B, H, T, T), 0 where a position sees nothing."""
    return np.tril(np.abs(x(5, B, H, T, T)))


def factors(x: np.ndarray) -> np.ndarray:
    """Return numbers from 2^-20 to 2^20."""
    return np.ldexp(x, ids(41, x.size).reshape(x.shape).astype(np.int32) - 20)


# The results of each are concatenated.
VECTORS: dict[str, Callable[[Any], Any]] = {
    "fma": lambda f: f.fma(x(1, 1000), x(2, 1000), factors(x(3, 1000))),
    "exp": lambda f: f.exp(np.abs(x(1, 1000)) * np.float32(-21)),
    "log": lambda f: f.log(1 + np.abs(factors(x(1, 1000)))),
    "sigmoid": lambda f: f.sigmoid(x(1, 1000) * 16),
    "power": lambda f: np.array([f.power(0.999, 900), f.power(0.8, 7)]),
    "cos_pi": lambda f: np.array([f.cos_pi(i / 16) for i in range(17)]),
    "row_sum": lambda f: np.float32([f.row_sum(x(1, 200))]),
    "row_dot": lambda f: np.float32([f.row_dot(x(1, 200), x(2, 200))]),
    "row_max": lambda f: np.float32([f.row_max(x(1, 200))]),
    "softmax": lambda f: f.softmax(x(1, 300) * 8),
    "product": lambda f: f.product(x(1, 5, 600), x(2, 600, 7)),
    "product added": lambda f: f.product(x(1, 5, 600), x(2, 600, 7), x(3, 5, 7)),
    "gated_gelu": lambda f: f.gated_gelu(x(1, 3, 50), x(2, 3, 50)),
    "gated_gelu_gradient": lambda f: f.gated_gelu_gradient(x(1, 3, 50), x(2, 3, 50), x(3, 3, 50)),
    "rms_norm": lambda f: f.rms_norm(x(1, 3, 70), x(2, 70), 1e-6),
    "rms_norm_gradient": lambda f: f.rms_norm_gradient(
        x(1, 150, 70), x(2, 150, 70), x(3, 70), np.abs(x(4, 150))
    ),
    "attention": lambda f: f.attention(
        x(1, 1, 5, 4, 8), x(2, 1, 300, 2, 8), x(3, 1, 300, 2, 8), first(1, 5, 300, 290)
    ),
    "attention_gradient": lambda f: f.attention_gradient(
        x(1, 1, 300, 2, 4), x(2, 1, 300, 2, 4), x(3, 1, 300, 1, 4), x(4, 1, 300, 1, 4),
        first(1, 300, 300, 300), weights(1, 2, 300),
    ),
    "short_attention": lambda f: f.short_attention(
        x(1, 1, 9, 4, 8), x(2, 1, 20, 2, 8), x(3, 1, 20, 2, 8), first(1, 9, 20, 5), 5
    ),
    "short_attention_gradient": lambda f: f.short_attention_gradient(
        x(1, 1, 9, 2, 4), x(2, 1, 9, 2, 4), x(3, 1, 9, 1, 4), x(4, 1, 9, 1, 4),
        first(1, 9, 9, 5), np.abs(x(5, 1, 9, 2, 5)),
    ),
    "token_nats": lambda f: f.token_nats(x(1, 6, 40), x(2, 130, 40), ids(130, 6)),
    "row_nats": lambda f: f.row_nats(x(1, 130) * 8, 17),
    "mean_nats": lambda f: np.float32([f.mean_nats(np.abs(x(1, 1000)))]),
    "square_sum": lambda f: np.array([f.square_sum(x(1, 9000))]),
    "multiples": lambda f: f.multiples(x(1, 1000) * np.float32(2.0**-20), 2.0**-40, 2.0**50),
    "adamw": lambda f: f.adamw(
        x(1, 100), x(2, 100), x(3, 100), np.abs(x(4, 100)), (0.9, 0.95, 0.999, 0.01, 0.7, 1e-8)
    ),
    "orthogonalize": lambda f: f.orthogonalize(x(1, 2, 8, 12), (3.4445, -4.775, 2.0315), 5),
    "sum_rows_by_id": lambda f: f.sum_rows_by_id(x(1, 60, 6), ids(20, 60), 20),
    "sum_bags": lambda f: f.sum_bags(x(1, 20, 6), ids(20, 60), np.array([0, 5, 5, 30])),
}  # fmt: skip


def adamw(p, grad, mean, square, scalars):
    """Return p and both moments after a step."""
    order.adamw(p, grad, mean, square, scalars)
    return p, mean, square


class Definition:
    """The functions of lm.exact.order; `adamw` returns what it updates."""

    adamw = staticmethod(adamw)

    def __getattr__(self, name: str):
        return getattr(order, name)


def arrays_of(result) -> list[np.ndarray]:
    return list(map(np.asarray, result)) if isinstance(result, tuple) else [np.asarray(result)]


def described(name: str, functions) -> str:
    """Return the first numbers of the results of a vector, and the SHA-256 of all their bytes, little-endian."""
    results = arrays_of(VECTORS[name](functions))
    digest = hashlib.sha256()
    lines = [name]
    for result in results:
        little_endian = np.ascontiguousarray(result, result.dtype.newbyteorder("<"))
        digest.update(little_endian.tobytes())
        bits = result.ravel()[:3].view(f"u{result.itemsize}")
        width = 2 * result.itemsize
        numbers = " ".join(f"{int(number):0{width}x}" for number in bits)
        lines.append(f"    {result.dtype} {list(result.shape)}: {numbers}")
    return "\n".join([*lines, f"    sha256 {digest.hexdigest()}"])


# The page.

TEXT = """\
# The order of every sum

This page defines exact numerics: computing in this order gives the bits of ReproLM, in any language and on any device.
It is generated from [order.py](../src/lm/exact/order.py). Tests compare the loops for processors and the kernels for
GPUs with it, bit for bit (`tests/lm/exact/test_order.py`, `tests/lm/exact/test_gpu.py`). [Reproduce and
verify](reproducibility.md) explains the use.

## Rules

{rules}

## Constants

{constants}

## Operations

{operations}

## Test vectors

If you implement the operations again, compare your results with these. The inputs follow from formulas that every
language computes exactly:

{inputs}

Each result has its type, its shape, and the bits of its first three numbers in hexadecimal digits. `sha256` is the
digest of the bytes of all results of an operation, one after the other, little-endian. `adamw` returns what it updates:
the parameters and both moments.

{results}
"""


def page() -> str:
    """Return docs/exact_order.md."""
    source = inspect.getsource(order)
    constants, *sections = source[source.index("\n# Lengths.") :].split("\n\n\n# ")
    return TEXT.format(
        rules=inspect.getdoc(order),
        constants=python_block(constants),
        operations="\n\n".join(operations(section) for section in sections),
        inputs=inputs(),
        results=results(),
    )


def python_block(source: str) -> str:
    return f"```python tested\n{source.strip()}\n```"


def operations(section: str) -> str:
    """Return the code of a section of order.py; the comment above it becomes its heading and its text."""
    comment, code = section.split("\n", 1)
    heading, _, text = comment.partition(". ")
    blocks = [f"### {heading.rstrip('.')}"]
    if text:
        blocks.append(text)
    blocks.append(python_block(code))
    return "\n\n".join(blocks)


def inputs() -> str:
    """Return the functions that compute the inputs, and their calls."""
    helpers = [inspect.getsource(each) for each in (x, ids, first, weights, factors)]
    source = inspect.getsource(inspect.getmodule(inputs))  # pyright: ignore[reportArgumentType]
    calls = source.partition("# The results of each are concatenated.\n")[2].partition("}  # fmt: skip")[0]
    calls = calls.replace("VECTORS: dict[str, Callable[[Any], Any]] =", "VECTORS =")
    return python_block("\n\n".join(helpers) + "\n\n" + calls + "}")


def results() -> str:
    """Return the results of the vectors."""
    with np.errstate(all="ignore"):
        described_vectors = [described(name, Definition()) for name in VECTORS]
    return "```text output\n" + "\n".join(described_vectors) + "\n```"


if __name__ == "__main__":
    write_text(PAGE, page())
