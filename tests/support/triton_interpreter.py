"""Triton's interpreter with the arithmetic of a GPU: import this module before any module with kernels.

The interpreter computes with NumPy, on tensors of a CPU. Its `fma` rounds twice and its `dot` adds in the order of a
library, so both are replaced by the instruction of the processor, one term after the other. Its numbers are arrays of
one element, which NumPy 2.4 no longer takes for indices.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import lm.core.environment  # noqa: F401

import numba
import numpy as np
from triton.runtime import interpreter

from lm.exact.cpu.registers import fma

float32_fma = numba.vectorize(["float32(float32, float32, float32)"])(lambda x, y, z: fma(x, y, z))


@numba.njit
def dot(x, y, total):
    """Return total (M, N) plus x (M, K) @ y (K, N), the terms added one after the other."""
    total = total.copy()
    for i in range(len(x)):
        for k in range(len(y)):
            for j in range(y.shape[1]):
                total[i, j] = fma(x[i, k], y[k, j], total[i, j])
    return total


def create_fma(self, x, y, z):
    assert x.data.dtype == y.data.dtype == z.data.dtype == np.float32
    result = float32_fma(x.data, y.data, z.data)
    return interpreter.TensorHandle(result, z.dtype.scalar)


def create_dot(self, x, y, total, input_precision, max_num_imprecise_acc):
    assert input_precision.name == "IEEE", "another precision rounds the operands"
    x_array, y_array, total_array = (np.ascontiguousarray(each.data) for each in (x, y, total))
    result = dot(x_array, y_array, total_array)
    return interpreter.TensorHandle(result, total.dtype.scalar)


patch_tensor = interpreter._patch_lang_tensor


def patch_tensor_and_index(tensor, scope):
    patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = patch_tensor_and_index
interpreter.InterpreterBuilder.create_fma = create_fma
interpreter.InterpreterBuilder.create_dot = create_dot
np.seterr(all="ignore")  # what is masked may be infinite or not a number
