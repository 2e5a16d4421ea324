"""Ranges of the characters of a split, and checks of them."""

import dataclasses
import math
from collections.abc import Collection
from typing import Annotated

from lm.core.errors import DataError, ParamsError
from lm.core.params import at_least, read_section, require
from lm.core.paths import PARAMS, SOURCES

TEST = "test"  # the split that no slice names and no stage reads


@dataclasses.dataclass(frozen=True)
class Slice:
    """The characters start_char to start_char + num_chars of a split; num_chars None means to its end."""

    split: str
    start_char: Annotated[int, at_least(0)]
    num_chars: Annotated[int | None, at_least(1, ", or null for the rest")]

    @property
    def end_char(self) -> float:
        """Return the position after the last character, or infinity."""
        return math.inf if self.num_chars is None else self.start_char + self.num_chars


@dataclasses.dataclass(frozen=True)
class MixedSlice(Slice):
    """A range of the characters of a mixture's training stream, and its sources' shares of bytes, in any unit."""

    weights: dict[str, Annotated[float, at_least(0)]]

    def __post_init__(self):
        require(sum(self.weights.values()) > 0, "weights", self.weights, "at least one above 0")


# `read_section` takes the type whose keys the section has.
AnySlice: type[Slice] = Slice | MixedSlice  # pyright: ignore[reportAssignmentType] - both are a Slice


def reject_test(text_slice: Slice, where: str) -> None:
    """Raise ParamsError if a slice of a source names the split that is held out."""
    if text_slice.split == TEST:
        problem = f"{where}.split is {TEST!r}, the split that is held out from every stage"
        raise ParamsError(f"{problem}; give the split another name in the section fetch, and here")


def slice_from(recorded: dict) -> Slice:
    """Return the slice that a sidecar records."""
    return MixedSlice(**recorded) if "weights" in recorded else Slice(**recorded)


def read_slice(split: str) -> Slice:
    """Return the slice of the selected source; reject a validation slice that overlaps the training slice."""
    source = read_section(PARAMS, "data.source", str)
    train = read_section(SOURCES, f"sources.{source}.train", AnySlice)
    if split == "train":  # a change of the validation slice must not tokenize train again
        return train
    validation = read_section(SOURCES, f"sources.{source}.validation", Slice)
    reject_overlap(train, validation, f"{SOURCES}: sources.{source}")
    return validation


def reject_overlap(train: Slice, validation: Slice, where: str) -> None:
    """Raise ParamsError if the two slices have a character in common."""
    start = max(train.start_char, validation.start_char)
    end = min(train.end_char, validation.end_char)
    if train.split == validation.split and start < end:
        overlap = f"characters {start} to {end} of split {train.split!r}"
        raise ParamsError(f"{where}: train and validation share {overlap}; move validation.start_char")


def check_weights(weights: dict[str, float], sources: Collection[str], where: str) -> None:
    """Raise ParamsError unless `weights` has one entry for each source and no other."""
    known = f"the sources are {', '.join(sources)}"
    if unknown := [name for name in weights if name not in sources]:
        raise ParamsError(f"{where}.train.weights names {unknown[0]!r}, which is not a source; {known}")
    if missing := [name for name in sources if name not in weights]:
        advice = "give it one; with 0 it stays out of training"
        raise ParamsError(f"{where}.train.weights has no weight of the source {missing[0]!r}; {advice}")


def check_slice(manifest: dict, text_slice: Slice) -> None:
    """Raise DataError if the split does not exist or is shorter than the slice."""
    splits = manifest["splits"]
    source = f"sources.{manifest['source']}"
    split = text_slice.split
    start = text_slice.start_char
    if split not in splits:
        raise DataError(f"{source} has no split {split!r}; its splits are {', '.join(splits)}")
    total = splits[split]["characters"]
    if start >= total:
        raise DataError(f"{source}: start_char is {start}, but split {split!r} has {total} characters; lower it")
    reject_excess(text_slice, total, source)


def reject_excess(text_slice: Slice, total: int, source: str) -> None:
    """Raise DataError if the slice asks for more than `total` characters."""
    if text_slice.num_chars is not None and text_slice.end_char > total:
        asked = f"the slice from {text_slice.start_char} asks for {text_slice.num_chars}"
        excess = f"{asked}, {text_slice.end_char - total} too many"
        remedy = "lower num_chars, or set it to null for the rest"
        raise DataError(f"{source}: split {text_slice.split!r} has {total} characters; {excess}: {remedy}")
