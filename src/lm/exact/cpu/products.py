"""Products of matrices (M, K) and (K, N).

The second matrix is packed: its columns are copied to panels of COLUMNS columns each. A tile of ROWS rows and COLUMNS
columns of the result is computed in the registers of the processor.
"""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

import numpy as np
from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ZERO
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.registers import COLUMNS, add, add_product, any_layout, load_tile_row, store, tile_row_of
from lm.exact.order import TERMS

ROWS = 6  # of a tile: as many as the registers hold
VECTOR_WORK = 64  # multiplications and additions of a product per simple operation of equal time


@loop
def num_panels(num_columns):
    return (num_columns + COLUMNS - 1) // COLUMNS


@loop
def pack_panel(b, panel, packed):
    """Copy columns of b (K, N) to packed[panel] (K, COLUMNS); zeros follow the last one."""
    first = panel * COLUMNS
    width = min(COLUMNS, b.shape[1] - first)

    # Numbers of a row are next to each other: copy row by row.
    if b.strides[1] == 4 and width == COLUMNS:
        for k in range(len(b)):
            row = b[k, first : first + COLUMNS]
            copy = packed[panel, k]
            for j in range(COLUMNS):
                copy[j] = row[j]
        return

    # Otherwise copy 16 rows at a time, column by column.
    if width < COLUMNS:
        packed[panel] = ZERO
    for k0 in range(0, len(b), 16):
        k1 = min(k0 + 16, len(b))
        for j in range(width):
            for k in range(k0, k1):
                packed[panel, k, j] = b[k, first + j]


@loop
def pack_here(b):
    """Return the panels of b (K, N), one of COLUMNS columns after the other."""
    packed = np.empty((num_panels(b.shape[1]), len(b), COLUMNS), np.float32)
    for panel in range(len(packed)):
        pack_panel(b, panel, packed)
    return packed


@loop
def tile(a, i, first, panel, c, column, adds):
    """Add the chain of terms of a panel (terms, COLUMNS), from term `first` of a on, to ROWS rows of c.

    The tile begins at row i and at `column`. Unless it `adds`, the chain is added to +0.
    """
    # The six rows of the tile stay in registers.
    s0 = s1 = s2 = s3 = s4 = s5 = tile_row_of(ZERO)
    for k in range(len(panel)):
        row = load_tile_row(panel[k], 0)
        s0 = add_product(s0, a[i, first + k], row)
        s1 = add_product(s1, a[i + 1, first + k], row)
        s2 = add_product(s2, a[i + 2, first + k], row)
        s3 = add_product(s3, a[i + 3, first + k], row)
        s4 = add_product(s4, a[i + 4, first + k], row)
        s5 = add_product(s5, a[i + 5, first + k], row)
    store_sum(s0, c[i], column, adds)
    store_sum(s1, c[i + 1], column, adds)
    store_sum(s2, c[i + 2], column, adds)
    store_sum(s3, c[i + 3], column, adds)
    store_sum(s4, c[i + 4], column, adds)
    store_sum(s5, c[i + 5], column, adds)


@loop
def store_sum(chain, row, column, adds):
    """Add a chain to the numbers of a row from `column` on, or to +0."""
    before = load_tile_row(row, column) if adds else tile_row_of(ZERO)
    store(add(before, chain), row, column)


@loop
def edge_tile(a, i, first, panel, c, column, last_row, adds):
    """Do what `tile` does for a tile that reaches beyond the last row or column of c."""
    height = min(ROWS, last_row - i)
    width = min(COLUMNS, c.shape[1] - column)

    # Copy what there is to a whole tile.
    rows = np.zeros((ROWS, len(panel)), np.float32)
    spare = np.zeros((ROWS, COLUMNS), np.float32)
    for r in range(height):
        for k in range(len(panel)):
            rows[r, k] = a[i + r, first + k]
        if adds:
            for j in range(width):
                spare[r, j] = c[i + r, column + j]
    tile(any_layout(rows), 0, 0, panel, any_layout(spare), 0, adds)

    # Copy the results back.
    for r in range(height):
        for j in range(width):
            c[i + r, column + j] = spare[r, j]


@loop
def multiply_rows(a, packed, c, rows, terms, adds):
    """c[rows] = a[rows] @ b for a (M, K) and packed b, over some terms; with `adds`, c[rows] += it.

    Both ranges are (first, last). Chains are cut at multiples of TERMS.
    """
    first_row, last_row = rows
    first_term, last_term = terms
    for n in range(num_panels(c.shape[1])):
        column = n * COLUMNS
        has_all_columns = column + COLUMNS <= c.shape[1]
        first = first_term
        while first < last_term:
            # One chain of all tiles of this panel.
            last = min((first // TERMS + 1) * TERMS, last_term)
            panel = packed[n, first:last]
            adds_chain = adds or first > first_term
            for i in range(first_row, last_row, ROWS):
                has_all_rows = i + ROWS <= last_row
                if has_all_columns and has_all_rows:
                    tile(a, i, first, panel, c, column, adds_chain)
                else:
                    edge_tile(a, i, first, panel, c, column, last_row, adds_chain)
            first = last


@loop
def whole_product(a, b, c):
    """c (M, N) = a (M, K) @ b (K, N) of arrays of any strides."""
    all_rows = (0, len(a))
    all_terms = (0, len(b))
    multiply_rows(a, pack_here(b), c, all_rows, all_terms, False)


@loop
def tiles_of_part(number, part, parts):
    """Return the first row of a part of `number` rows, and the one after its last; both are multiples of ROWS."""
    num_tiles = (number + ROWS - 1) // ROWS
    tiles = rows_of_part(num_tiles, part, parts)
    return tiles.start * ROWS, min(number, tiles.stop * ROWS)


@loop
def pack_loop(x, is_transposed, packed, part, parts):
    b = any_layout(x.T) if is_transposed else any_layout(x)
    for panel in rows_of_part(len(packed), part, parts):
        pack_panel(b, panel, packed)


@loop
def multiply_loop(x, is_transposed, packed, c, adds, part, parts):
    a = any_layout(x.T) if is_transposed else any_layout(x)
    own_rows = tiles_of_part(len(a), part, parts)
    all_terms = (0, a.shape[1])
    multiply_rows(a, packed, any_layout(c), own_rows, all_terms, adds)


def pack(b: Tensor) -> np.ndarray:
    """Return b (K, N) in the order in which `multiply` reads it, which serves many products."""
    packed = np.empty((num_panels(b.shape[1]), len(b), COLUMNS), np.float32)
    run(pack_loop, *stored(b), packed, work=b.numel())
    return packed


def multiply(a: Tensor, packed: np.ndarray, out: Tensor, adds: bool = False) -> Tensor:
    """Write a @ b to `out` (M, N), or add it, and return `out`; a is (M, K), `packed` is b (K, N) packed."""
    num_products = out.numel() * a.shape[1]
    run(multiply_loop, *stored(a), packed, out, adds, work=num_products // VECTOR_WORK)
    return out


def stored(x: Tensor) -> tuple[Tensor, bool]:
    """Return a contiguous matrix, and whether it is the transpose of x."""
    if x.mT.is_contiguous() and not x.is_contiguous():
        return x.mT, True
    return x.contiguous(), False
