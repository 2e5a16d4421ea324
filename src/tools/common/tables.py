"""Markdown reports and tables that are also readable on a terminal."""

from collections.abc import Sequence
from pathlib import Path

import jinja2
import tabulate

tabulate.MIN_PADDING = 0  # no extra spaces beside a header that is its column's widest cell


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of an aligned Markdown table and an empty line; the first column is left-aligned."""
    header_cells = _escaped(header)
    row_cells = [_escaped(row) for row in rows]
    align = ["left"] + ["right"] * (len(header) - 1)
    text = tabulate.tabulate(
        row_cells,
        header_cells,
        tablefmt="pipe",
        disable_numparse=True,
        colalign=align,
    )
    return [*text.splitlines(), ""]


def _escaped(cells: Sequence[object]) -> list[str]:
    """Return cells as text that cannot end a cell."""
    return [str(cell).replace("|", "\\|") for cell in cells]


def render(template: Path, **values) -> list[str]:
    """Return the lines of a Jinja2 template filled in; a list is shown as its lines. An unknown name is an error."""
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: "\n".join(value) if isinstance(value, list) else value,
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values).splitlines()
