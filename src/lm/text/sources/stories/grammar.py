"""Little stories from a seeded grammar whose entropy is known exactly: 64 plots of uniform choices.

A plot is a text with fields in braces. A field names a slot, and a slot's options are a list of
`stories_words`: its first field in a plot makes the choice, every later one repeats it.

    {toy}         the chosen option: kite
    {a toy}       with its article: a kite, an umbrella
    {he friend}   the pronoun of the slot's option, or another word that follows it:
                  he him his boy brother king man (she her her girl sister queen woman)
    {he}          the same for the slot `hero`
    {He} {A bird} a capital in the field is a capital in the text

A story is a number: 128 random bits are read as the digits of its derivation, first the plot, then
one digit a slot in the order of appearance. Every list holds a power of two options, so the digits
are independent and exactly uniform, and a story's surprisal is the sum of log2(options) along its
derivation. No option of a list begins with the whole of another, and two plots differ in the first
piece they do not share whatever is filled in, so a text has one derivation; `parse` reads it from
left to right. Stories are one paragraph, and fields stand behind a space where they can, so that a
word is the same token wherever it returns.
"""

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from lm.core.errors import DataError
from lm.text.parquet import describe_split, write_documents
from lm.text.sources.stories import children, wonders
from lm.text.sources.stories.words import PRONOUNS, WORDS

FIELD = re.compile(r"\{(?:(\w+) )?(\w+)\}")
MASK_64 = 2**64 - 1


@dataclass(frozen=True)
class StoriesFetch:
    """`seed` of the corpus and the stories in each split; validation continues train's counter."""

    kind: Literal["stories"]
    seed: int
    num_documents: int
    num_validation_documents: int

    def __post_init__(self):
        if not 0 <= self.seed <= MASK_64:
            raise ValueError(f"seed is {self.seed}, needed: 0 to 2**64 - 1")
        for name in ("num_documents", "num_validation_documents"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, needed: at least 1")


@dataclass(frozen=True)
class Story:
    """A text, its derivation (plot, then one option per slot) and the derivation's information."""

    text: str
    choices: tuple[int, ...]
    surprisal_bits: float


@dataclass(frozen=True)
class Field:
    """One brace of a plot: the slot it shows, and what each of the slot's options reads as there."""

    slot: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """A compiled plot: literals[0] fields[0] literals[1] … and the number of options of each slot."""

    literals: tuple[str, ...]
    fields: tuple[Field, ...]
    num_options: tuple[int, ...]

    @property
    def surprisal_bits(self) -> float:
        """The information of one story of this plot, the choice of the plot included."""
        return math.log2(len(plots())) + sum(math.log2(count) for count in self.num_options)

    @property
    def mean_utf8_bytes(self) -> float:
        """The expected length of a story of this plot: each field takes its options' mean."""
        mean_of_fields = sum(sum(map(_utf8_bytes, field.words)) / len(field.words) for field in self.fields)
        return sum(map(_utf8_bytes, self.literals)) + mean_of_fields


def _utf8_bytes(text: str) -> int:
    return len(text.encode("utf-8"))


@functools.cache
def plots() -> tuple[Plot, ...]:
    """All plots, compiled, in the order of the two books."""
    blocks = (children.PLOTS + wonders.PLOTS).strip().split("\n\n")
    return tuple(_compile(block) for block in blocks)


def _compile(block: str) -> Plot:
    """Compile one plot: a title line, which is dropped, then lines that are joined by spaces."""
    text = " ".join(block.split("\n")[1:])
    slots: dict[str, int] = {}
    fields = []
    for form, name in FIELD.findall(text):
        form, name = _form_and_slot(form, name)
        slot = slots.setdefault(name.lower(), len(slots))
        fields.append(Field(slot, _words(form, name)))
    literals = FIELD.sub("\0", text).split("\0")
    return Plot(tuple(literals), tuple(fields), tuple(len(options(name)) for name in slots))


def _form_and_slot(form: str, name: str) -> tuple[str, str]:
    """{he} is short for {he hero}."""
    return (name, "hero") if not form and name.lower() in PRONOUNS["he"] else (form, name)


@functools.cache
def options(slot: str) -> tuple[tuple[str, str], ...]:
    """The options of a slot as (word, "he" | "she" | "")."""
    groups = [group.rpartition(":") for group in WORDS[slot].split(";")]
    return tuple((" ".join(word.split()), gender.strip()) for gender, _, words in groups for word in words.split(","))


@functools.cache
def _words(form: str, name: str) -> tuple[str, ...]:
    """What each option of a slot reads as in a field, e.g. form "A", name "toy" → "An umbrella", …"""
    words = tuple(_inflect(form.lower(), *option) for option in options(name.lower()))
    return tuple(word[0].upper() + word[1:] for word in words) if (form + name)[0].isupper() else words


def _inflect(form: str, word: str, gender: str) -> str:
    if not form:
        return word
    if form == "a":
        return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"
    return PRONOUNS[gender][form]


def story(seed: int, index: int) -> Story:
    """The story number `index` (from 0) of the corpus `seed`: the same on every machine."""
    digits, plot_index = divmod(_random_128_bits(seed, index), len(plots()))
    plot = plots()[plot_index]
    choices = [plot_index]
    for count in plot.num_options:
        digits, choice = divmod(digits, count)
        choices.append(choice)
    return Story(render(choices), tuple(choices), plot.surprisal_bits)


def render(choices: Sequence[int]) -> str:
    """The text of a derivation."""
    plot = plots()[choices[0]]
    parts = [plot.literals[0]]
    for field, literal in zip(plot.fields, plot.literals[1:], strict=True):
        parts.append(field.words[choices[1 + field.slot]])
        parts.append(literal)
    return "".join(parts)


def _random_128_bits(seed: int, index: int) -> int:
    """Outputs 2·index and 2·index + 1 of splitmix64 whose state starts at the hash of `seed`."""
    start = _splitmix64(seed, 0)
    return _splitmix64(start, 2 * index) << 64 | _splitmix64(start, 2 * index + 1)


def _splitmix64(state: int, step: int) -> int:
    """Output number `step` of splitmix64 (Steele, Lea, Flood 2014) from `state`, in 64 bits."""
    z = (state + (step + 1) * 0x9E3779B97F4A7C15) & MASK_64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK_64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK_64
    return z ^ (z >> 31)


def parse(text: str) -> tuple[int, ...]:
    """The one derivation of a story's text; DataError if the grammar cannot derive it."""
    for plot_index, plot in enumerate(plots()):
        choices = _match(plot, text)
        if choices is not None:
            return (plot_index, *choices)
    raise DataError(f"no story of the grammar: {text[:60]!r}…; surprisal is known for its own stories only")


def _match(plot: Plot, text: str) -> tuple[int, ...] | None:
    """The options of `plot`'s slots in `text`, or None. Every field narrows its slot's candidates."""
    candidates = [range(count) for count in plot.num_options]
    position = 0
    for literal, field in zip(plot.literals, (*plot.fields, None), strict=True):
        if not text.startswith(literal, position):
            return None
        position += len(literal)
        if field is None:
            break
        found = [c for c in candidates[field.slot] if text.startswith(field.words[c], position)]
        if not found:
            return None
        candidates[field.slot] = found
        position += len(field.words[found[0]])
    if position != len(text):
        return None
    return tuple(found[0] for found in candidates)


def surprisal_bits(text: str) -> float:
    """The information of one story's text; DataError as `parse`."""
    return plots()[parse(text)[0]].surprisal_bits


def entropy_bits_per_story() -> float:
    """The entropy of a story: plots are equally likely, and so are the options of each slot."""
    return sum(plot.surprisal_bits for plot in plots()) / len(plots())


def mean_utf8_bytes_per_story() -> float:
    """The expected length of a story, exact over the grammar."""
    return sum(plot.mean_utf8_bytes for plot in plots()) / len(plots())


def fetch_stories(fetch: StoriesFetch, folder: Path) -> dict:
    """Write both splits below `folder` and return the manifest with the entropy of the corpus."""
    counts = {"train": fetch.num_documents, "validation": fetch.num_validation_documents}
    realised_bits, first = {}, 0
    for split, count in counts.items():
        indices = tqdm(range(first, first + count), desc=f"{split} stories", unit="story", disable=None)
        corpus = [story(fetch.seed, index) for index in indices]
        texts, bits = [s.text for s in corpus], [s.surprisal_bits for s in corpus]
        write_documents(folder / split / "0000.parquet", texts, surprisal_bits=bits)
        realised_bits[split] = sum(bits)
        first += count
    return {
        "kind": fetch.kind,
        "seed": fetch.seed,
        "licence": "MIT",
        "column": "text",
        "splits": {split: describe_split(folder, split, "text") for split in counts},
        "entropy": {
            "bits_per_story": entropy_bits_per_story(),
            "utf8_bytes_per_story": mean_utf8_bytes_per_story(),
            "bits_per_byte": entropy_bits_per_story() / mean_utf8_bytes_per_story(),
            "stories_per_split": counts,
            "realised_bits_per_split": realised_bits,
        },
    }
