"""Markdown tables that are also readable on a terminal."""

from tabulate import tabulate


def table(header: list[str], rows: list[list]) -> list[str]:
    """Return the lines of an aligned Markdown table and an empty line; the first column is left-aligned."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [header, *rows]]
    align = ["left", *["right"] * (len(header) - 1)]
    text = tabulate(cells[1:], cells[0], tablefmt="pipe", disable_numparse=True, colalign=align if rows else None)
    return [*text.splitlines(), ""]
