"""Check without running them that the mutants still apply; `make mutants` runs them."""

from benchmarks.mutants import MUTANTS
from support import ROOT


def test_each_mutant_changes_one_place_and_names_a_test_file():
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text().count(mutant.line) == 1, mutant.safeguard
        assert mutant.line != mutant.becomes
        file = mutant.tests.partition(" -k ")[0]
        assert (ROOT / file).is_file() or (ROOT / "tests" / file).is_file(), mutant.tests
