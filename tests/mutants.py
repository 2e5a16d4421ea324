"""Remove one safeguard at a time and check that a test fails: `make mutants`.

The mutants are listed in tests/safeguards. Each names a line of the code, its replacement, and the tests that must
fail. They run on a copy of the repository. Exit with 1 if a mutant survives, or if tests fail without any mutant.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from safeguards import data, evaluation, files, tools, training
from support.mutant import Mutant
from support.workspace import copy_repository

MUTANTS = [*files.MUTANTS, *data.MUTANTS, *training.MUTANTS, *evaluation.MUTANTS, *tools.MUTANTS]


def tests_pass(folder: Path, tests: str) -> bool:
    """Return True if the tests of a file in the copy pass; -k after the file selects some of them."""
    file, _, chosen = tests.partition(" -k ")
    options = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", *(["-k", chosen] if chosen else [])]
    command = [sys.executable, "-m", "pytest", *options, folder / "tests" / file]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def caught(mutant: Mutant, folder: Path) -> bool:
    """Return True if the mutant's tests fail with it; restore the copy."""
    path = folder / mutant.file
    before = path.read_text()
    if before.count(mutant.line) != 1:
        raise SystemExit(
            f"{mutant.file}: {mutant.line!r} occurs {before.count(mutant.line)} times; update tests/safeguards"
        )
    path.write_text(before.replace(mutant.line, mutant.becomes))
    try:
        return not tests_pass(folder, mutant.tests)
    finally:
        path.write_text(before)


def main() -> int:
    """Print a line for each mutant; return 1 if one survives."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_repository(folder)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # the tests ask git for its files
        for tests in sorted({mutant.tests for mutant in MUTANTS}):
            if not tests_pass(folder, tests):
                raise SystemExit(f"{tests}: fails without any mutant")
        survivors = 0
        for mutant in MUTANTS:
            is_caught = caught(mutant, folder)
            survivors += not is_caught
            print(
                f"{'caught by ' + mutant.tests if is_caught else 'SURVIVED'}: {mutant.safeguard} ({mutant.file})",
                flush=True,
            )
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
