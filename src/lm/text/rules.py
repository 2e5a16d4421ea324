"""Rules that a document's own text must keep, computed for one batch of documents at a time.

Lengths are in characters. The rules are those of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1), C4 (Raffel
et al. 2020, JMLR 21, section 2.2) and Codex (Chen et al. 2021, arXiv 2107.03374, section 3.1) that fit any text.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.core.params import FRACTION, Range, at_least, require
from lm.text.near_duplicates import NgramWords, NumPermutations

Limit = Annotated[int | None, at_least(1, ", or null for off")]
Fraction = Annotated[float | None, Range(lambda value: 0 <= value <= 1, "from 0 to 1, or null for off")]


@dataclasses.dataclass(frozen=True)
class NearDuplicateRule:
    """Parameters of lm.text.near_duplicates, with its rule 2; a threshold of None switches it off."""

    threshold: Annotated[float | None, FRACTION]
    ngram_words: NgramWords
    num_permutations: NumPermutations


@dataclasses.dataclass(frozen=True)
class Selection:
    """The rules in the order in which they are applied; None or False switches a rule off."""

    min_chars: Limit
    max_chars: Limit
    max_line_chars: Limit
    min_alphanumeric_fraction: Fraction
    max_repeated_line_fraction: Fraction
    exact_duplicates: bool
    near_duplicates: NearDuplicateRule

    def __post_init__(self):
        least = self.min_chars
        most = self.max_chars
        is_ordered = least is None or most is None or least <= most
        require(is_ordered, "min_chars", least, f"at most max_chars, which is {most}")

    @property
    def keeps_everything(self) -> bool:
        has_limit = any(getattr(self, name) is not None for name in MEASURES)
        return not (has_limit or self.exact_duplicates) and self.near_duplicates.threshold is None


RULES = tuple(field.name for field in dataclasses.fields(Selection))
KEPT = len(RULES)  # the code of a document that breaks no rule; the code of a broken rule is its index in RULES


def longest_line(text: str) -> int:
    """Return the characters of the longest line (Chen et al. 2021: minified code and data have very long lines)."""
    return max(map(len, text.split("\n")))


def alphanumeric_fraction(text: str) -> float:
    """Return the letters and digits of any script, as a fraction of the characters (Chen et al. 2021).

    It replaces Gopher's rules on words with a letter and on symbols, which assume English.
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.count_nonzero(alphanumeric_table()[codes]) / len(codes)


@functools.cache
def alphanumeric_table() -> np.ndarray:
    """Return whether each code point is a letter or a digit, (1,114,112) bool, by the Unicode version of pyarrow.

    Python's own tables differ between its versions, and requirements.txt does not pin Python.
    """
    codes = np.arange(0x110000, dtype=np.uint32)
    codes[0xD800:0xE000] = ord(" ")  # surrogates, which no valid text holds
    characters = pa.array(list(codes.tobytes().decode("utf-32-le")))
    is_alphanumeric = pc.utf8_is_alnum(characters).cast(pa.int8())
    return np.from_dlpack(is_alphanumeric).astype(bool)


def repeated_line_fraction(text: str) -> float:
    """Return the characters in lines that occurred before in the document, as a fraction of all its characters.

    Gopher's duplicate line character fraction (Rae et al. 2021, table A1).
    """
    lines = text.split("\n")
    num_chars = sum(map(len, lines))
    num_chars_once = sum(map(len, set(lines)))
    return (num_chars - num_chars_once) / len(text)


# The rules that need one document only: the measure, and the comparison with the limit that drops the document.
MEASURES: dict[str, tuple[Callable[[str], float], np.ufunc]] = {
    "min_chars": (len, np.less),
    "max_chars": (len, np.greater),
    "max_line_chars": (longest_line, np.greater),
    "min_alphanumeric_fraction": (alphanumeric_fraction, np.less),
    "max_repeated_line_fraction": (repeated_line_fraction, np.greater),
}


def first_broken_rules(texts: list[str], selection: Selection) -> np.ndarray:
    """Return the index in RULES of the first rule of MEASURES that each document breaks, (n,) uint8; KEPT for none."""
    broken = np.full(len(texts), KEPT, np.uint8)
    for name, (measure, is_beyond) in MEASURES.items():
        limit = getattr(selection, name)
        if limit is None:
            continue
        left = np.flatnonzero(broken == KEPT)
        values = np.fromiter((measure(texts[i]) for i in left), np.float64, len(left))
        breaking = left[is_beyond(values, limit)]
        broken[breaking] = RULES.index(name)
    return broken
