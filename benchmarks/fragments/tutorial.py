"""Fragments of docs/tutorial.md: what its commands printed."""

import re
from collections.abc import Callable

from fragments.runs import shortened
from fragments.text import machine, output, paragraph, read


def tutorial_printed(beginning: str) -> str:
    """Return what the command of docs/tutorial.md that begins so has printed."""
    (text,) = [text for command, text in read("tutorial")["printed"].items() if command.startswith(beginning)]
    return text


def tutorial_lines(beginning: str, pattern: str) -> str:
    """Return of that the lines that match a pattern."""
    lines = [line for line in tutorial_printed(beginning).splitlines() if re.search(pattern, line)]
    return output("\n".join(lines))


def tutorial_first(beginning: str, count: int) -> str:
    """Return its first lines."""
    lines = tutorial_printed(beginning).splitlines()
    return output("\n".join([*lines[:count], *(["…"] if len(lines) > count else [])]))


def tutorial_machine() -> str:
    """Where the commands ran."""
    found = read("tutorial")
    minutes = sum(found["seconds"].values()) / 60
    text = (
        f"What the commands print is shown shortened, on {machine('tutorial')}. There they took {minutes:.0f} minutes "
        f"in all. They read the standard library of Python {found['python']}. Another version has another text, and "
        f"gives other numbers."
    )
    return paragraph(text)


def tutorial_trace() -> str:
    """What the sample has in common with the training text in all, and its longest span."""
    text = tutorial_printed("python src trace")
    span = text[text.index("\n1. ") :].strip().split("\n\n")[0]
    return output(f"{text.splitlines()[0]}\n…\n{span}")


def tutorial_transformers() -> str:
    """The text that transformers generates, without what it prints while it loads the model."""
    text = tutorial_printed("import torch")
    return output(text[text.index("class Reader") :])


def tutorial_tuned() -> str:
    """The validation losses of fine-tuning, and a text of the tuned model."""
    losses = tutorial_printed("cut -d")
    written = tutorial_printed('python src generate "To train')
    return output(f"{losses}\n{written}")


TUTORIAL: dict[str, Callable[[], str]] = {
    "tutorial-machine": tutorial_machine,
    "tutorial-use": lambda: output(tutorial_printed("python src use")),
    "tutorial-train": lambda: tutorial_lines(
        "dvc exp run -n base",
        r"^(train|validation): |^data/tokenizer|^(device|parameters|steps|memory) |^step (0|500) of",
    ),
    "tutorial-explain": lambda: tutorial_first("python src explain", 10),
    "tutorial-trace": tutorial_trace,
    "tutorial-compare": lambda: output(shortened(tutorial_printed("python src compare"))),
    "tutorial-table": lambda: output(tutorial_printed("dvc exp show")),
    "tutorial-generate": lambda: output(tutorial_printed('python src generate "def main')),
    "tutorial-transformers": tutorial_transformers,
    "tutorial-tuned": tutorial_tuned,
}  # fmt: skip
