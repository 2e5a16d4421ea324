"""Check that README.md in this folder and the tests agree: every number has a fast test, every test a row."""

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TEST = re.compile(r"^((?:@.*\n|[ )\]].*\n)*)def test_(\d\d)_", re.M)


def test_every_number_has_a_row_and_a_fast_test_and_every_test_a_row():
    rows = re.findall(r"^\| (\d+) \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.M)
    assert [int(row) for row in rows] == list(range(1, 36))
    tests = [found for path in FOLDER.glob("test_*.py") for found in TEST.findall(path.read_text(encoding="utf-8"))]
    assert {int(number) for _, number in tests} == set(range(1, 36))
    assert {int(number) for decorators, number in tests if "@pytest.mark.slow" not in decorators} == set(range(1, 36))
