"""The fingerprint of a run covers the code that decides its bits, and nothing else."""

import ast
import shutil

import pytest

from lm.train import checkpoints
from lm.train.checkpoints import CODE, arithmetic_of, fingerprint
from support import ROOT

LM = ROOT / "src" / "lm"
# What src/train.py calls between two checkpoints.
DECIDING = ("train/step.py", "train/schedule.py", "train/batches.py", "train/optimizers.py", "model/gemma3.py")


def imported(path):
    """Return the modules of src/lm that a module imports directly, without lm.core."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lm."):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    files = {LM.parent / (name.replace(".", "/") + ".py") for name in names}
    return {file for file in files if file.exists() and file.parent.name != "core"}


def test_the_list_is_the_import_closure_of_the_step():
    closure, pending = set(), [LM / name for name in DECIDING]
    while pending:
        path = pending.pop()
        if path not in closure:
            closure.add(path)
            pending += imported(path)
    assert tuple(sorted(str(path.relative_to(LM)) for path in closure)) == CODE


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the code that the fingerprint reads."""
    for name in CODE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(LM / name, tmp_path / name)
    monkeypatch.setattr(checkpoints, "SOURCE", tmp_path)
    return tmp_path


def test_a_fingerprint_changes_with_anything_it_covers(copy, monkeypatch):
    def current(lr=1.0, data="h"):
        return fingerprint({"lr": lr}, {"train": data})

    base = current()
    assert base == current() and len(base) == 16
    assert len({base, current(lr=2.0), current(data="g")}) == 3
    for name in CODE:
        before = (copy / name).read_text()
        (copy / name).write_text(before + "\nMORE = 1\n")
        assert current() != base, name
        (copy / name).write_text(before)
    assert current() == base
    monkeypatch.setattr("torch.__version__", "9.9.9+cpu")
    assert current() != base


CODE_BEFORE = """
def __post_init__(self):
    check(self.x, "above 0")

def half(x):
    \"\"\"Return half of x.\"\"\"
    if x < 0:
        raise ValueError(f"x is {x}, " "needed: 0 or more")
    return x / 2
"""
KEPT = [
    ("Return half of x.", "Halve x."),
    ("    return x / 2", "    # Half of it.\n    return (x / 2)"),
    ('"above 0"', '"positive"'),
    ('f"x is {x}, " "needed: 0 or more"', '"negative: " + str(x)'),
]
CHANGED = [("x / 2", "x / 3"), ("x < 0", "x <= 0"), ("ValueError", "KeyError"), ("half", "halve")]


@pytest.mark.parametrize(("old", "new"), KEPT)
def test_words_and_formatting_do_not_count(old, new):
    assert old in CODE_BEFORE
    assert arithmetic_of(CODE_BEFORE.replace(old, new)) == arithmetic_of(CODE_BEFORE)


@pytest.mark.parametrize(("old", "new"), CHANGED)
def test_code_counts(old, new):
    assert arithmetic_of(CODE_BEFORE.replace(old, new)) != arithmetic_of(CODE_BEFORE)
