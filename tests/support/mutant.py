"""A safeguard of the code, and what becomes of it without."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A safeguard, its file and line, the replacement, and the tests that must fail."""

    safeguard: str
    file: str
    line: str
    becomes: str
    tests: str
