"""The versions that a result names are those of all packages that decide it."""

from support import ROOT
from tools.record import environment


def test_the_versions_are_of_all_packages_that_decide_bits():
    lines = (ROOT / "requirements/bits.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}

    assert {"torch", "numpy", "numba", "llvmlite"} <= pinned
    assert set(environment.versions()) == pinned | {"python", "matplotlib", "dvc"}
