"""What reports show: Markdown tables that are also readable on a terminal, templates, the first words of documents."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jinja2
import numpy as np
import tabulate

from lm.tokenizer.load import Tokenizer
from lm.tokens.tokenfile import TokenFile

NUM_CHARS = 40
SEARCHED_TOKENS = 1000  # for a line that the other documents lack

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


def previews(tokens: TokenFile, tokenizer: Tokenizer, spans: np.ndarray) -> list[str]:
    """Return the first words of each document at token positions `spans` (D, 2), from a line on that the others lack.

    Where no line tells a document apart, such as a licence that all begin with, these are its first words. The
    end-of-text id is left out, white space becomes single spaces, backticks become apostrophes, so that the text is
    safe inside Markdown code.
    """
    texts = [
        tokenizer.decode(tokens.ids[start : min(end - 1, start + SEARCHED_TOKENS)]) for start, end in spans.tolist()
    ]
    lines = [[line.strip() for line in text.splitlines()] for text in texts]
    documents_with = Counter(line for own in lines for line in set(own))
    shown = []
    for own in lines:
        first = next((i for i, line in enumerate(own) if line and documents_with[line] == 1), 0)
        words = " ".join(" ".join(own[first:]).split()).replace("`", "'")
        shown.append(words if len(words) <= NUM_CHARS else words[: NUM_CHARS - 1] + "…")
    return shown
