"""Write the page of the probes: tables, and excerpts in which each token has the colour of its loss."""

import math
from bisect import bisect_right
from pathlib import Path

import jinja2

LEVEL_BITS = (1, 2, 4, 8, 12)  # where the next stronger colour begins
SIGNS = {"\n": "↵", "\t": "→", " ": "·"}
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in SIGNS}  # which HTML cannot hold
NO_TEXT = "▫"  # a part of a character, whose last token has it


def render(details: dict, excerpts: dict, against: Path | None) -> str:
    """Return the page, one file without scripts; `against` is the folder of the model that is compared."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"cell": cell, "chance": chance, "label": label}
    levels = [f"from {low} bits" for low in (0, *LEVEL_BITS)]
    text = "".join(text for each in excerpts["places"] + excerpts["documents"] for text in each["texts"])
    return environment.get_template("page.html.j2").render(
        details, excerpts=excerpts, tokens_of=tokens_of, rows=rows_of, levels=levels, against_folder=against,
        is_aligned="  " in text or "\t" in text,  # text laid out by spaces needs letters of equal width
    )  # fmt: skip


def rows_of(entry: dict[str, dict] | list[dict]) -> list[list]:
    """Return the rows of a table of an entry of the details: the figures of each name, or of each row."""
    if isinstance(entry, dict):
        return [[name, *figures.values()] for name, figures in entry.items()]
    return [[*row.values()] for row in entry]


def tokens_of(excerpt: dict) -> list[dict]:
    """Return for each token of an excerpt its text, the number of its colour (0: the weakest), and a line about it.

    The colour is that of the regret, which is the loss where the text's own surprisal is unknown.
    """
    losses = excerpt["loss_nats"]
    return [
        {"text": show(text), "level": bisect_right(LEVEL_BITS, regret / math.log(2)), "regret": regret,
         "line": f"loss {loss:.2f} nats, probability {chance(math.exp(-loss))}"
                 + (f", regret {regret:.2f} nats" if "regret_nats" in excerpt else "")}
        for text, loss, regret in zip(excerpt["texts"], losses, excerpt.get("regret_nats", losses), strict=True)
    ]  # fmt: skip


def show(text: str) -> str:
    """Return a token's text with signs for what cannot be seen: white space alone, control characters, no text."""
    if not text.strip():
        text = "".join(SIGNS.get(each, each) + (each if each in "\n\t" else "") for each in text) or NO_TEXT
    return text.translate(CONTROLS)


def label(text: str) -> str:
    """Return a token's text on one line, with a sign for each white space."""
    return "".join(SIGNS.get(each, each) for each in text).translate(CONTROLS) or NO_TEXT


def chance(probability: float) -> str:
    """Return a probability in percent, or as 1 in … where it is below 1 %."""
    if probability >= 0.01:
        return f"{100 * probability:.{0 if 0.1 <= probability < 0.99 else 1}f}\N{NO-BREAK SPACE}%"
    return f"1 in {float(f'{1 / probability:.2g}'):,.0f}" if probability else "about 0"


def cell(value) -> str:
    """Return a table cell: few digits of a number, both ends of an interval."""
    if isinstance(value, list):
        return " to ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < abs(value) < 0.001 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)
