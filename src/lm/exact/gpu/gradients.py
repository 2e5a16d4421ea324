"""The size of gradients, and gradients as integers."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lm.exact import order
from lm.exact.gpu.constants import WHOLE_FROM
from lm.exact.gpu.launch import NUMBERS, cdiv, launch
from lm.exact.gpu.reductions import row_squares


@triton.jit
def block_sums_kernel(addresses, widths, sums, num_blocks, longest, ROWS: tl.constexpr):
    """sums (num_blocks,) = the sum of the squares of each block of `widths` numbers that begins at `addresses`."""
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_block = block < num_blocks
    width = tl.load(widths + block, mask=is_block, other=0)
    address = tl.load(addresses + block, mask=is_block, other=0)
    start = address.to(tl.pointer_type(tl.float32))
    total = row_squares(start[:, None], width[:, None], longest, ROWS)
    tl.store(sums + block, total, mask=is_block)


def block_sums(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Return the sums of squares of blocks of NORM_NUMBERS, tensor after tensor, and how many blocks each has.

    The tensors are contiguous and on one device.
    """
    # Each tensor has its number of blocks.
    numbers = np.array([x.numel() for x in tensors])
    starts = np.array([x.data_ptr() for x in tensors])
    blocks = -(-numbers // order.NORM_NUMBERS)
    num_blocks = int(blocks.sum())

    # The position of each block in its tensor: 0, 1, … for each tensor.
    blocks_before = np.cumsum(blocks) - blocks
    position = np.arange(num_blocks) - np.repeat(blocks_before, blocks)

    # The address and the length of each block; the last one of a tensor may be shorter.
    bytes_of_block = order.NORM_NUMBERS * tensors[0].element_size()
    addresses = np.repeat(starts, blocks) + position * bytes_of_block
    numbers_left = np.repeat(numbers, blocks) - position * order.NORM_NUMBERS
    widths = np.minimum(numbers_left, order.NORM_NUMBERS)

    # Both move to the device together.
    sums = tensors[0].new_empty(num_blocks)
    table = torch.from_numpy(np.stack([addresses, widths])).to(sums.device)
    grid = (cdiv(num_blocks, 4),)
    launch(block_sums_kernel, grid, *table.unbind(), sums, num_blocks, order.NORM_NUMBERS, ROWS=4)
    return sums, blocks.tolist()


def square_sums(tensors: Iterable[Tensor]) -> list[float]:
    """Return the float64 sum of the squares of each tensor, of any shape."""
    flat = [x.detach().contiguous() for x in tensors]
    if not flat:
        return []
    sums, blocks = block_sums(flat)
    all_sums = sums.cpu().numpy().astype(np.float64)
    sums_of_tensors = np.split(all_sums, np.cumsum(blocks)[:-1])
    return [add_in_order(each) for each in sums_of_tensors]


def add_in_order(numbers: np.ndarray) -> float:
    """Return the sum of numbers (N,) float64, added one after the other."""
    if len(numbers) == 0:
        return 0.0
    return float(np.cumsum(numbers)[-1])


@triton.jit
def multiples_kernel(x, out, size, PER_UNIT: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """out = x PER_UNIT rounded to an integer, half to even, at most LARGEST in size; NaN becomes 0."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    number = tl.load(x + i, mask=inside, other=0.0).to(tl.float64) * PER_UNIT
    number = tl.where(number > LARGEST, LARGEST, number)
    number = tl.where(number < -LARGEST, -LARGEST, number)
    number = tl.where(number == number, number, 0.0)  # NaN is not equal to itself

    # The addition rounds to an integer.
    rounded = (tl.abs(number) + WHOLE_FROM) - WHOLE_FROM
    integer = rounded.to(tl.int64)
    signed = tl.where(number < 0.0, -integer, integer)
    tl.store(out + i, signed, mask=inside)


def multiples(x: Tensor, unit: float, largest: float) -> Tensor:
    """Return x (any shape) as multiples of `unit`, a power of two: int64, at most `largest` in size; NaN becomes 0.

    `largest` is an integer of at most 2**51.
    """
    x = x.detach().contiguous()
    result = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    grid = (cdiv(x.numel(), NUMBERS),)
    constants = {"PER_UNIT": 1 / unit, "LARGEST": float(largest)}
    launch(multiples_kernel, grid, x, result, x.numel(), **constants, BLOCK=NUMBERS)
    return result
