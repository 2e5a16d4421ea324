"""The size of gradients, and gradients as integers."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.launch import NUMBERS, cdiv, launch
from lm.exact.gpu.reductions import row_squares


@triton.jit
def block_sums_kernel(addresses, widths, sums, num_blocks, longest, ROWS: tl.constexpr):
    """sums (num_blocks,) = the sum of the squares of each block of `widths` numbers that begins at `addresses`."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_block = block < num_blocks
    width = tl.load(widths + block, mask=is_block, other=0)
    start = tl.load(addresses + block, mask=is_block, other=0).to(tl.pointer_type(tl.float32))
    total = row_squares(start[:, None], width[:, None], longest, ROWS)
    tl.store(sums + block, total, mask=is_block)


def block_sums(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return the sums of squares of blocks of NORM_NUMBERS, tensor after tensor, and how many blocks each has.

    The tensors are contiguous and on one device.
    """
    numbers = np.array([x.numel() for x in tensors])
    starts = np.array([x.data_ptr() for x in tensors])
    blocks = -(-numbers // order.NORM_NUMBERS)
    total = int(blocks.sum())

    # The address and the length of each block.
    position = np.arange(total) - np.repeat(np.cumsum(blocks) - blocks, blocks)  # in its tensor
    addresses = np.repeat(starts, blocks) + position * (order.NORM_NUMBERS * tensors[0].element_size())
    widths = np.repeat(numbers, blocks) - position * order.NORM_NUMBERS
    table = np.stack([addresses, np.minimum(widths, order.NORM_NUMBERS)])

    sums = tensors[0].new_empty(total)
    on_device = torch.from_numpy(table).to(sums.device)
    grid = (cdiv(total, 4),)
    launch(block_sums_kernel, grid, *on_device.unbind(), sums, total, order.NORM_NUMBERS, ROWS=4)
    return sums, blocks.tolist()


def square_sums(tensors: Iterable[Tensor]) -> list[float]:
    """Return the sum of the squares of each tensor."""
    flat = [x.detach().contiguous() for x in tensors]
    if not flat:
        return []
    sums, blocks = block_sums(flat)
    parts = np.split(sums.cpu().numpy().astype(np.float64), np.cumsum(blocks)[:-1])
    return [float(np.cumsum(part)[-1]) if len(part) else 0.0 for part in parts]  # cumsum adds in order


@triton.jit
def multiples_kernel(x, out, size, PER_UNIT: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """out = x PER_UNIT rounded to an integer, half to even, at most LARGEST in size; NaN becomes 0."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(x + i, mask=i < size, other=0.0).to(tl.float64) * PER_UNIT
    number = tl.where(number > LARGEST, LARGEST, number)
    number = tl.where(number < -LARGEST, -LARGEST, number)
    number = tl.where(number == number, number, 0.0)
    # Beyond 2**52 float64 numbers are integers.
    rounded = (tl.abs(number) + 4503599627370496.0) - 4503599627370496.0
    integer = rounded.to(tl.int64)
    tl.store(out + i, tl.where(number < 0.0, -integer, integer), mask=i < size)


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0.

    `largest` is an integer of at most 2**51.
    """
    x = x.detach().contiguous()
    result = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    grid = (cdiv(x.numel(), NUMBERS),)
    constants = {"PER_UNIT": 1 / unit, "LARGEST": float(largest)}
    launch(multiples_kernel, grid, x, result, x.numel(), **constants, BLOCK=NUMBERS)
    return result
