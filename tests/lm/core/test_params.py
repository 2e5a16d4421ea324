"""The typed loader reads what DVC records and refuses every wrong value."""

import dataclasses
from typing import Annotated, Literal

import pytest

from lm.core.errors import ParamsError
from lm.core.params import FRACTION, coerce, read_section


@dataclasses.dataclass(frozen=True)
class Inner:
    start: int
    end: int | None


@dataclasses.dataclass(frozen=True)
class Section:
    rate: float
    steps: int
    name: Literal["a", "b"]
    flag: bool
    names: tuple[str, ...]
    inner: Inner
    share: Annotated[float | None, FRACTION]

    def __post_init__(self):
        if self.rate <= 0:
            raise ValueError(f"rate is {self.rate}; it must be above 0")


@dataclasses.dataclass(frozen=True)
class Longer(Inner):
    weights: dict[str, float]


GOOD = {
    "rate": 1e-5,
    "steps": 3,
    "name": "a",
    "flag": True,
    "names": ["x"],
    "inner": {"start": 1, "end": None},
    "share": None,
}
TEXT = """
s:
  rate: 3
  steps: 2
  name: b
  flag: false
  names: [x, y]
  inner: {start: 0, end: 7}
  share: 1
"""


def test_a_section_becomes_its_dataclass(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(TEXT)

    section = read_section(path, "s", Section)

    assert section == Section(
        rate=3.0,
        steps=2,
        name="b",
        flag=False,
        names=("x", "y"),
        inner=Inner(0, 7),
        share=1.0,
    )
    assert isinstance(section.rate, float)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rate": "abc"}, "p: s.rate is 'abc', not a finite number"),
        ({"rate": float("nan")}, "s.rate is nan"),
        ({"rate": -1}, "p: s.rate is -1.0; it must be above 0"),
        ({"steps": 512.0}, "s.steps is 512.0, not an integer"),
        ({"steps": True}, "s.steps is True, not an integer"),
        ({"share": 0.0}, "p: s.share is 0.0; it must be above 0, at most 1"),
        ({"steps": "5", "flag": 1}, "p: s.steps is '5', not an integer\np: s.flag is 1, not true or false"),
        ({"name": "c"}, "s.name is 'c'; it must be one of a, b"),
        ({"names": [1]}, "s.names[0] is 1"),
        ({"inner": {"start": 1}}, "s.inner.end is missing"),
        ({"stepz": 1}, "s.stepz is unknown; the nearest valid name is s.steps"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change, sentence):
    with pytest.raises(ParamsError) as caught:
        coerce({**GOOD, **change}, Section, "s", "p")

    assert sentence in str(caught.value)


def test_the_dataclass_with_more_of_the_keys_is_read():
    short = {"start": 1, "end": None}
    weighted = {"start": 1, "end": 2, "weights": {"a": 1}}

    assert coerce(short, Inner | Longer, "s", "p.yaml") == Inner(1, None)
    assert coerce(weighted, Inner | Longer, "s", "p.yaml") == Longer(1, 2, {"a": 1.0})
