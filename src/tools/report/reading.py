"""Where the loss is: pictures for the report, and a page of excerpts in which each token has the colour of its loss."""

import math
from bisect import bisect_right
from functools import partial

from lm.core.files import read_json
from tools.common import paths
from tools.report.pictures import draw_calibration, draw_loss_by_frequency, draw_loss_by_length
from tools.report.workspace import Workspace, picture

BREAKDOWN = ("by_frequency", "by_length", "calibration")  # entries of the details of the evaluation
COLUMNS = {  # of the tables, by entry of the details
    "phenomena": (
        "tokens_per_story", "surprisal_bits_per_story", "loss_bits_per_story", "excess_bits_per_story", "excess_se",
    ),
    "minimal_pairs": ("pairs", "documents", "accuracy", "accuracy_interval"),
    "parts": ("documents", "bits_per_byte", "bits_per_byte_se"),
}  # fmt: skip
LEVEL_BITS = (1, 2, 4, 8, 12)  # where the next darker colour begins
SIGNS = {"\n": "↵", "\t": "→", " ": "·"}
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in SIGNS}  # which HTML cannot hold
NO_TEXT = "▫"  # a part of a character, whose last token has it


def breakdown(workspace: Workspace) -> dict:
    """Return tables of phenomena, minimal pairs and parts; draw calibration, and the loss by frequency and length."""
    score = workspace.get(paths.EVALUATION_DETAILS)
    tables = {entry: rows_of(score.get(entry, {}), columns) for entry, columns in COLUMNS.items()}
    if not all(name in score for name in BREAKDOWN):
        return {
            "tables": tables,
            "pictures": [],
            "notes": workspace.notes((paths.EVALUATION_DETAILS, "where the loss is")),
        }
    pictures = [
        picture("Calibration", 4.2, partial(draw_calibration, calibration=score["calibration"])),
        picture("Loss by frequency of the token", 3.4, partial(draw_loss_by_frequency, rows=score["by_frequency"])),
        picture("Loss by length of the document", 3.4, partial(draw_loss_by_length, rows=score["by_length"])),
    ]
    return {"tables": tables, "pictures": pictures, "notes": []}


def rows_of(entry: dict[str, dict], columns: tuple[str, ...]) -> list[tuple]:
    """Return a row for each name of an entry of the details; an interval becomes text."""
    return [(name, *(as_cell(figures[column]) for column in columns)) for name, figures in entry.items()]


def as_cell(value):
    """Return a figure as it is, an interval as text."""
    return f"{value[0]:.4f} to {value[1]:.4f}" if isinstance(value, list) else value


def reading(workspace: Workspace) -> dict | None:
    """Return the variables of reading.html.j2; None without excerpts of the present evaluation."""
    if not (workspace.get(paths.EVALUATION_DETAILS) and paths.EXCERPTS.exists()):
        return None
    excerpts = read_json(paths.EXCERPTS)
    places, documents = ([each | {"tokens": describe_tokens(each)} for each in excerpts[name]]
                         for name in ("places", "documents"))  # fmt: skip
    text = "".join(text for each in places + documents for text in each["texts"])
    return {
        "has_regret": excerpts["has_regret"],
        "places": places,
        "documents": documents,
        "levels": [name_level(level) for level in range(len(LEVEL_BITS) + 1)],
        "is_aligned": "  " in text or "\t" in text,  # text laid out by spaces needs letters of equal width
    }


def describe_tokens(excerpt: dict) -> list[dict]:
    """Return for each token of an excerpt its text, loss and regret, the levels of both, and a line about them."""
    losses = excerpt["loss_nats"]
    return [
        {
            "text": show(text), "label": label(text),
            "loss": loss, "regret": regret, "level": level_of(loss), "regret_level": level_of(regret),
            "line": f"loss {describe_nats(loss)}, probability {chance(math.exp(-loss))}"
            + (f", regret {describe_nats(regret)}" if "regret_nats" in excerpt else ""),
        }
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


def level_of(nats: float) -> int:
    """Return the number of the colour, 0 for the lightest."""
    return bisect_right(LEVEL_BITS, nats / math.log(2))


def name_level(level: int) -> tuple[str, str]:
    """Return the range of a colour in bits and in nats."""
    low, high = ((0, *LEVEL_BITS)[level], (*LEVEL_BITS, None)[level])
    if high is None:
        return f"{low} bits or more", f"{low * math.log(2):.1f} nats or more"
    return f"{low} – {high} bits", f"{low * math.log(2):.1f} – {high * math.log(2):.1f} nats"


def describe_nats(nats: float) -> str:
    """Return nats, and the same in bits."""
    return f"{nats:.2f} nats ({nats / math.log(2):.1f} bits)"


def chance(probability: float) -> str:
    """Return a probability in percent, or as 1 in … where it is below 1 %."""
    if probability >= 0.01:
        return f"{100 * probability:.{0 if 0.1 <= probability < 0.99 else 1}f}\N{NO-BREAK SPACE}%"
    return f"1 in {float(f'{1 / probability:.2g}'):,.0f}" if probability else "about 0"
