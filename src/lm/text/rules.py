"""Rules that a document's own text must keep, computed for one batch of documents at a time.

Lengths are in characters. The rules are those of Gopher (Rae et al. 2021, arXiv 2112.11446, appendix A.1), C4 (Raffel
et al. 2020, JMLR 21, section 2.2) and Codex (Chen et al. 2021, arXiv 2107.03374, section 3.1) that fit any text.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lm.text.config import Selection

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


def keeps_everything(selection: Selection) -> bool:
    """Return whether all rules are off."""
    has_limit = any(getattr(selection, name) is not None for name in MEASURES)
    return not (has_limit or selection.exact_duplicates) and selection.near_duplicates.threshold is None
