"""Short stories from a seeded grammar whose entropy is known exactly: 64 plots with uniform choices.

A plot (`plots_children.txt`, `plots_wonders.txt`) is a text with fields in braces. A field names a slot, and
`words.txt` lists the options of each slot. The first field of a slot in a plot makes the choice; later
fields repeat it.

    {toy}         the chosen option: kite
    {a toy}       with its article: a kite, an umbrella
    {he friend}   the pronoun of the slot's option, or another word that depends on it:
                  he him his boy brother king man (she her her girl sister queen woman)
    {he}          the same for the slot `hero`
    {He} {A bird} a capital in the field is a capital in the text

A story is a number: 128 random bits are read as digits, first the plot, then one digit per slot in order of
appearance. Every list has a power of two options, so the digits are independent and exactly uniform, and a story's
surprisal is the sum of log2(options) over its digits. No option of a list begins with the whole of another, and two
plots differ in the first piece they do not share, whatever fills the fields. So a text has one derivation.
"""

import collections
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from tqdm import tqdm

from lm.core.params import Range, at_least
from lm.text.parquet import describe_split, write_documents

FIELD = re.compile(r"\{(?:(\w+) )?(\w+)\}")
FORMS = ("he", "him", "his", "boy", "brother", "king", "man")
PRONOUNS = {
    "he": dict(zip(FORMS, FORMS, strict=True)),
    "she": dict(zip(FORMS, ("she", "her", "her", "girl", "sister", "queen", "woman"), strict=True)),
}
MASK_64 = 2**64 - 1


@dataclass(frozen=True)
class StoriesFetch:
    """The seed of the corpus and the number of stories in each split; validation continues after train."""

    kind: Literal["stories"]
    seed: Annotated[int, Range(lambda value: 0 <= value <= MASK_64, "0 to 2**64 - 1")]
    num_documents: Annotated[int, at_least(1)]
    num_validation_documents: Annotated[int, at_least(1)]


class Story(NamedTuple):
    """A text, its derivation (the plot, then one option per slot) and its information."""

    text: str
    choices: tuple[int, ...]
    surprisal_bits: float


class Field(NamedTuple):
    """One pair of braces in a plot: its slot, the form of its words, and the text of each of the slot's options."""

    slot: int
    words: tuple[str, ...]
    slot_name: str
    form: str  # "" the option itself, "a" with its article, or one of FORMS
    is_first: bool  # it makes the slot's choice


@dataclass(frozen=True)
class Plot:
    """A compiled plot: literals[0] fields[0] literals[1] …, and the number of options of each slot."""

    literals: tuple[str, ...]
    fields: tuple[Field, ...]
    num_options: tuple[int, ...]

    @property
    def surprisal_bits(self) -> float:
        """Return the information of a story of this plot, including the choice of the plot."""
        return math.log2(len(plots())) + sum(math.log2(count) for count in self.num_options)

    @property
    def mean_utf8_bytes(self) -> float:
        """Return the expected length of a story of this plot: each field has the mean length of its options."""
        of_fields = sum(len("".join(field.words).encode()) / len(field.words) for field in self.fields)
        return len("".join(self.literals).encode()) + of_fields


def _read_blocks(name: str) -> list[str]:
    """Return the blocks of a text file beside this module, each as one line without its comments."""
    blocks = Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n\n")
    lines = (" ".join(ln.strip() for ln in block.splitlines() if not ln.startswith("#")) for block in blocks)
    return [line for line in lines if line]


@functools.cache
def word_lists() -> dict[str, list[tuple[str, str]]]:
    """Return slot → its options in order, each as (word, "he" | "she" | "")."""
    lists = collections.defaultdict(list)
    for block in _read_blocks("words.txt"):
        head, _, words = block.partition(":")
        slot, _, gender = head.partition(" ")
        lists[slot] += [(word.strip(), gender.strip("()")) for word in words.split(",")]
    return dict(lists)


@functools.cache
def plots() -> tuple[Plot, ...]:
    """Return all plots, compiled, in the order of the two files."""
    return tuple(map(_compile, _read_blocks("plots_children.txt") + _read_blocks("plots_wonders.txt")))


def _compile(text: str) -> Plot:
    slots: dict[str, int] = {}
    fields = []
    for form, name in FIELD.findall(text):
        if not form and name.lower() in FORMS:
            form, name = name, "hero"  # {he} is short for {he hero}
        slot_name, is_first = name.lower(), name.lower() not in slots
        slot = slots.setdefault(slot_name, len(slots))
        fields.append(Field(slot, _field_words(form, name), slot_name, form.lower(), is_first))
    literals = FIELD.sub("\0", text).split("\0")
    return Plot(tuple(literals), tuple(fields), tuple(len(word_lists()[name]) for name in slots))


@functools.cache
def _field_words(form: str, name: str) -> tuple[str, ...]:
    """Return the text of each option in a field: form "A" and name "toy" give "An umbrella", …"""
    options = word_lists()[name.lower()]
    if form.lower() == "a":
        words = tuple(f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}" for word, _ in options)
    else:
        words = tuple(PRONOUNS[gender][form.lower()] if form else word for word, gender in options)
    return tuple(word[0].upper() + word[1:] for word in words) if (form + name)[0].isupper() else words


def story(seed: int, index: int) -> Story:
    """Return story `index` (from 0) of the corpus `seed`; it is the same on every machine."""
    start = _splitmix64(seed, 0)
    bits = _splitmix64(start, 2 * index) << 64 | _splitmix64(start, 2 * index + 1)
    digits, plot_index = divmod(bits, len(plots()))
    plot = plots()[plot_index]
    choices = [plot_index]
    for count in plot.num_options:
        digits, choice = divmod(digits, count)
        choices.append(choice)
    return Story(render(choices), tuple(choices), plot.surprisal_bits)


def render(choices: Sequence[int]) -> str:
    """Return the text of a derivation."""
    plot = plots()[choices[0]]
    words = [field.words[choices[1 + field.slot]] for field in plot.fields]
    return "".join(literal + word for literal, word in zip(plot.literals, [*words, ""], strict=True))


def _splitmix64(state: int, step: int) -> int:
    """Return output number `step` of splitmix64 (Steele, Lea, Flood 2014) from `state`, 64 bits."""
    z = (state + (step + 1) * 0x9E3779B97F4A7C15) & MASK_64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK_64
    return z ^ (z >> 31)


def entropy_bits_per_story() -> float:
    """Return the entropy of a story: plots are equally likely, and so are the options of each slot."""
    return sum(plot.surprisal_bits for plot in plots()) / len(plots())


def mean_utf8_bytes_per_story() -> float:
    """Return the expected length of a story, exact over the grammar."""
    return sum(plot.mean_utf8_bytes for plot in plots()) / len(plots())


def fetch_stories(fetch: StoriesFetch, folder: Path) -> dict:
    """Write both splits below `folder` and return the manifest."""
    counts, first = {"train": fetch.num_documents, "validation": fetch.num_validation_documents}, 0
    for split, count in counts.items():
        indices = tqdm(range(first, first + count), desc=f"{split} stories", unit="story", disable=None)
        write_documents(folder / split / "0000.parquet", (story(fetch.seed, index).text for index in indices))
        first += count
    splits = {split: describe_split(folder, split, "text") for split in counts}
    return {"kind": fetch.kind, "seed": fetch.seed, "licence": "MIT", "column": "text", "splits": splits}
