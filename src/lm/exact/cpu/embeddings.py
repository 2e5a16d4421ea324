"""Sums of rows that ids choose."""

# Type checkers do not know what numba adds to instructions.
# pyright: reportCallIssue=false

from torch import Tensor

from lm.exact.cpu.compiled import loop
from lm.exact.cpu.constants import ZERO
from lm.exact.cpu.parts import rows_of_part, run
from lm.exact.cpu.registers import add, lanes_of, load_lanes, store
from lm.exact.order import LANES


@loop
def sum_bags_loop(rows, ids, starts, out, part, parts):
    width = rows.shape[1]
    whole = width // LANES * LANES  # columns
    for i in rows_of_part(len(starts), part, parts):
        first = starts[i]
        last = starts[i + 1] if i + 1 < len(starts) else len(ids)

        # LANES columns at a time, whose sums stay in registers.
        for column in range(0, whole, LANES):
            total = lanes_of(ZERO)
            for n in range(first, last):
                total = add(total, load_lanes(rows[ids[n]], column))
            store(total, out[i], column)

        # The columns that are left.
        for column in range(whole, width):
            number = ZERO
            for n in range(first, last):
                number += rows[ids[n], column]
            out[i, column] = number


def sum_bags(rows: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Return sums (K, C) of rows (R, C): row i adds the rows of ids[starts[i] : starts[i + 1]], in their order."""
    out = rows.new_empty(len(starts), rows.shape[1])
    num_additions = len(ids) * rows.shape[1]
    run(sum_bags_loop, rows, ids, starts, out, work=num_additions)
    return out
