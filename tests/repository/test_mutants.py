"""Check without running them that the mutants still apply; `make mutants` runs them."""

from benchmarks.mutants import MUTANTS
from support import ROOT


def test_each_mutant_changes_one_place_and_names_a_test_file():
    for mutant in MUTANTS:
        code = (ROOT / mutant.file).read_text()
        assert code.count(mutant.line) == 1, mutant.safeguard
        assert mutant.becomes != mutant.line, mutant.safeguard

        file = mutant.tests.partition(" -k ")[0]
        exists = (ROOT / file).is_file() or (ROOT / "tests" / file).is_file()
        assert exists, mutant.tests
