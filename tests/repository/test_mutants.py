"""Check without running them that the mutants of tests/safeguards still apply; `make mutants` runs them."""

import pytest

from mutants import MUTANTS
from support import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.safeguard)
def test_a_mutant_changes_one_place_and_names_a_test_file(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.line) == 1, mutant.file
    assert mutant.line != mutant.becomes
    assert (ROOT / "tests" / mutant.tests.partition(" -k ")[0]).is_file()
