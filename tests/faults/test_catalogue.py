"""Check that README.md in this folder and the tests agree: every number has a test, every test a row."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CATALOGUE = (FOLDER / "README.md").read_text(encoding="utf-8")


def numbered_tests(without: str | None = None) -> list[tuple[str, str, int]]:
    """Return (file, test, number of its fault) for every test of this folder but these; 0 for a name without number.

    Tests with the decorator `without` are left out.
    """
    functions = [
        (path.name, node.name) for path in sorted(FOLDER.glob("test_*.py")) if path != Path(__file__)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        and without not in map(ast.unparse, node.decorator_list)
    ]  # fmt: skip
    numbers = [re.match(r"test_(\d\d)_", name) for _, name in functions]
    return [(*both, int(number[1]) if number else 0) for both, number in zip(functions, numbers, strict=True)]


def test_every_number_has_a_row_and_tests_and_every_test_a_row():
    rows = re.findall(r"^\| (\d+) \|.*\| `test_(\d\d)_\*` \|$", CATALOGUE, re.M)
    assert [int(number) for number, _ in rows] == [int(tests) for _, tests in rows] == list(range(1, 36))
    assert {number for _, _, number in numbered_tests()} == set(range(1, 36))


def test_every_number_has_a_fast_test():
    assert {number for _, _, number in numbered_tests(without="pytest.mark.slow")} >= set(range(1, 36))


def test_the_name_of_a_file_covers_the_numbers_of_its_tests():
    for file, name, number in numbered_tests():
        covered = [int(word) for word in re.findall(r"_(\d\d)(?=_)", file)]
        assert not covered or covered[0] <= number <= covered[-1], f"{file}: {name}"


def test_the_twenty_kills_are_in_the_catalogue():
    assert "`test_kill_twenty.py`" in CATALOGUE and (FOLDER / "test_kill_twenty.py").exists()
