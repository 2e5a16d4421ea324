"""Write the page of the probes: tables, and excerpts in which a token is the darker, the larger its excess."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from extras.probes.excerpts import Excerpt
from tools.common.tables import table

DARKEST_BITS = 12
SIGNS = {"\n": "↵\n", "\t": "→\t", " ": "·", "": "▫"}  # shown for white space, and for part of a character
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}  # which HTML cannot hold
HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Probes</title><style>
:root { color-scheme: light dark; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
pre { overflow-x: auto; font-size: 0.85rem; }
.text { white-space: pre-wrap; line-height: 1.7; tab-size: 4; }
.marked { outline: 2px solid; }
</style></head><body>
"""


def render(details: dict, excerpts: dict[str, list[Excerpt]], against: Path | None) -> str:
    """Return the page, one file without scripts; `against` is the folder of the model that is compared."""
    calibration = details["calibration"]
    tables = (
        ("Loss on the stories by phenomenon", "Tokens, and bits per story. The excess is the loss minus the surprisal "
         "in the grammar, which no model can avoid.", details["phenomena"]),
        ("Minimal pairs", "Two texts that differ in one word, which is right in only one of them. Chance gives 0.5. "
         "The 95 % interval is for other documents.", details["minimal_pairs"]),
        ("Minimal pairs of two models", f"A is {against}, B is this model, on the pairs that both have. The "
         "95 % interval is for other documents. A true difference of the detectable size would be shown 80 % of the "
         "time, and so would the measured one with the documents needed.", details["against"]),
        ("Loss by occurrences of the token in training", "", details["by_frequency"]),
        ("Loss by tokens of the document", "", details["by_length"]),
        ("Calibration", f"The most likely token has a mean probability of {calibration['mean_probability']:.1%} and is "
         f"right in {calibration['accuracy']:.1%} of {calibration['tokens']:,} places. The expected calibration error "
         f"is {calibration['expected_calibration_error']:.1%}.", calibration["bins"]),
    )  # fmt: skip
    parts = [HEAD, f"<h1>Probes of the weights {details['weights_sha256']}</h1>\n"]
    for title, note, entry in tables:
        if entry:
            parts.append(f"<h2>{title}</h2><p>{escape(note)}</p>\n<pre>{escape(text_table(entry))}</pre>\n")
    parts.append(
        "<p>In the excerpts, a token is the darker, the larger its excess loss, up to 12 bits. It is the loss; on "
        "stories it is the loss minus the surprisal in the grammar.</p>\n"
    )
    for title, chosen in excerpts.items():
        parts += [f"<h2>{title}</h2>\n", *map(text_of, chosen)]
    return "".join([*parts, "</body></html>\n"])


def text_table(entry: dict[str, dict] | list[dict]) -> str:
    """Return a table of the figures of each name, or of each row."""
    rows = [{"": name} | figures for name, figures in entry.items()] if isinstance(entry, dict) else entry
    return "\n".join(table([name.replace("_", " ") for name in rows[0]], [[*map(cell, row.values())] for row in rows]))


def text_of(excerpt: Excerpt) -> str:
    """Return an excerpt; each token has a background for its excess, and its figures in a tip."""
    spans = []
    columns = zip(excerpt.texts, excerpt.loss_nats, excerpt.excess_nats, strict=True)
    for i, (text, loss, excess) in enumerate(columns):
        opacity = 0.8 * min(1, max(0, excess / math.log(2) / DARKEST_BITS))
        mark = ' class="marked"' if i == excerpt.marked else ""
        tip = f"loss {loss:.2f} nats, excess loss {excess:.2f}, probability {math.exp(-loss):.2g}"
        spans.append(
            f'<span{mark} style="background: rgb(230 98 15 / {opacity:.2f})" title="{tip}">{show(text)}</span>'
        )
    return f'<h3>{escape(excerpt.title)}</h3>\n<div class="text">{"".join(spans)}</div>\n'


def show(text: str) -> str:
    """Return a token's text as HTML, with signs for what cannot be seen: white space alone, control characters."""
    if not text.strip():
        text = "".join(SIGNS.get(each, each) for each in text or [""])
    return escape(text.translate(CONTROLS))


def cell(value: object) -> str:
    """Return a table cell: few digits of a number, both ends of an interval."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " to ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.2g}" if 0 < abs(value) < 0.001 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)
