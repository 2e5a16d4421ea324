"""Write short stories for data.source local: readable English, made without a network.

    python src stories --num_documents 30000 --seed 1

A plot of plots_*.txt is a text with fields in braces. A field names a slot, and words.txt lists the options of each
slot. A story is a random plot with a random option in each of its slots; all fields of a slot have the same one.

    {toy}         the chosen option: kite
    {a toy}       with its article: a kite, an umbrella
    {he friend}   the pronoun of the slot's option, or another word that depends on it:
                  he him his boy brother king man (she her her girl sister queen woman)
    {he}          the same for the slot `hero`
    {He} {A bird} a capital in the field is a capital in the text
"""

import collections
import functools
import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import atomic_write
from tools.common.arguments import count, tool_parser

FOLDER = Path(__file__).parent
FIELD = re.compile(r"\{(?:(\w+) )?(\w+)\}")
HE = ("he", "him", "his", "boy", "brother", "king", "man")
SHE = ("she", "her", "her", "girl", "sister", "queen", "woman")
PRONOUNS = {"he": dict(zip(HE, HE, strict=True)), "she": dict(zip(HE, SHE, strict=True))}


def read_blocks(name: str) -> list[str]:
    """Return the blocks of a text file beside this module, each as one line without its comments."""
    blocks = []
    for block in (FOLDER / name).read_text(encoding="utf-8").split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if not line.startswith("#")]
        if lines:
            blocks.append(" ".join(lines))
    return blocks


@functools.cache
def options() -> dict[str, list[tuple[str, str]]]:
    """Return slot → its options in order, each as (word, "he" | "she" | "")."""
    lists = collections.defaultdict(list)
    for block in read_blocks("words.txt"):
        head, _, words = block.partition(":")
        slot, _, gender = head.partition(" ")
        lists[slot] += [(word.strip(), gender.strip("()")) for word in words.split(",")]
    return dict(lists)


@functools.cache
def plots() -> list[str]:
    return read_blocks("plots_children.txt") + read_blocks("plots_wonders.txt")


def tell(plot: str, draw: random.Random) -> str:
    """Return the plot with a drawn option in each slot."""
    chosen = {}

    def fill(field: re.Match) -> str:
        form, name = field.groups()
        if not form and name.lower() in HE:
            form, name = name, "hero"  # {he} is short for {he hero}

        # The first field of a slot draws its option.
        slot = name.lower()
        if slot not in chosen:
            chosen[slot] = draw.choice(options()[slot])
        word, gender = chosen[slot]

        # Write the option in the form of this field.
        if form and form.lower() == "a":
            article = "an" if word[0].lower() in "aeiou" else "a"
            word = f"{article} {word}"
        elif form:
            word = PRONOUNS[gender][form.lower()]
        is_capital = (form or name)[0].isupper()
        return word[0].upper() + word[1:] if is_capital else word

    return FIELD.sub(fill, plot)


def iter_stories(seed: int) -> Iterator[str]:
    """Yield stories without end, the same ones on every machine."""
    draw = random.Random(seed)
    while True:
        yield tell(draw.choice(plots()), draw)


@exit_with_status
def main(argv: list[str]) -> None:
    """Write the stories as JSON lines, complete or not at all."""
    parser = tool_parser("stories", __doc__)
    parser.add_argument("--num_documents", type=count, default=30_000, help="number of stories (30000)")
    parser.add_argument("--seed", type=count, default=1, help="seed of the stories (1)")
    parser.add_argument("--out", type=Path, default="data/local/stories.jsonl", help="file (data/local/stories.jsonl)")
    args = parser.parse_args(argv)
    if not args.num_documents:
        raise ParamsError("--num_documents is 0; it must be at least 1")

    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(args.out) as file:
        for text in itertools.islice(iter_stories(args.seed), args.num_documents):
            file.write(json.dumps({"text": text}).encode() + b"\n")
    print(f"{args.out}: {args.num_documents:,} stories")
