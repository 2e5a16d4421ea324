"""The fingerprint of a run covers each statement that the loop can reach and that decides bits, and no words."""

import ast
import shutil
import subprocess
import sys

import pytest

from lm.train import fingerprint as module
from lm.train.fingerprint import DECIDES_NO_BITS, arithmetic_of, deciding_files, fingerprint
from support import ROOT

SRC = ROOT / "src"


def test_every_module_that_the_loop_loads_counts():
    show = "import sys, train; print(*(m for m in sys.modules if m == 'train' or m.split('.')[0] == 'lm'))"
    loaded = subprocess.run([sys.executable, "-c", show], cwd=SRC, capture_output=True, text=True, check=True)
    paths = [SRC / name.replace(".", "/") for name in loaded.stdout.split()]
    files = {str(path.with_suffix(".py").relative_to(SRC)) for path in paths if not path.is_dir()}
    assert files - set(deciding_files()) == set(DECIDES_NO_BITS) & files
    assert {str(name) for name in DECIDES_NO_BITS} <= files
    for package in (path for path in paths if path.is_dir()):
        assert arithmetic_of((package / "__init__.py").read_text()) in ("pass", ""), package


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the code that the fingerprint reads."""
    for name in [*deciding_files(), *DECIDES_NO_BITS]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SRC / name, tmp_path / name)
    monkeypatch.setattr(module, "SOURCE", tmp_path)
    return tmp_path


def test_a_fingerprint_changes_with_what_it_covers(copied, monkeypatch):
    def current(lr=1.0, data="h"):
        return fingerprint({"lr": lr}, {"train": data})

    base = current()
    assert base == current() and len(base) == 16
    assert len({base, current(lr=2.0), current(data="g")}) == 3
    for names in (("train.py",), ("lm/train/step.py",), ("lm/tokens/windows.py",), DECIDES_NO_BITS):
        before = {copied / name: (copied / name).read_text() for name in names}
        for path, text in before.items():
            path.write_text(text + "\nMORE = 1\n")
        assert (current() == base) == (names is DECIDES_NO_BITS), names
        for path, text in before.items():
            path.write_text(text)
    (copied / "lm" / "train" / "more.py").write_text("")
    (copied / "train.py").write_text("import lm.train.more\n" + (copied / "train.py").read_text())
    assert "lm/train/more.py" in deciding_files()
    monkeypatch.setattr("torch.__version__", "9.9.9+cpu")
    assert current() != base


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_words(node):
    """Whether a statement only speaks: a docstring, an error, `print`, or a string given to a name."""
    if isinstance(node, ast.Expr):
        return is_text(node.value) or getattr(getattr(node.value, "func", None), "id", None) == "print"
    return isinstance(node, ast.Raise | ast.Pass) or (isinstance(node, ast.Assign) and is_text(node.value))


def statements_of(node):
    """Yield (list, index) of each statement below a node that computes something, also in inner blocks."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, [])
        for index, statement in enumerate(block if isinstance(block, list) else ()):
            if not is_words(statement) and getattr(statement, "name", "") != "__post_init__":
                yield block, index
                yield from statements_of(statement)


def expressions_of(statement):
    """Yield the nodes of one statement, without inner statements and without what is only text."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.JoinedStr | ast.arguments):
            yield child
            yield from expressions_of(child)


def changed(node):
    """Return the fields of a node with another number, operator or comparison, or None if it has none of them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return {"value": not node.value if isinstance(node.value, bool) else node.value + 1}
    if isinstance(node, ast.BinOp | ast.AugAssign):
        return {"op": ast.Add() if isinstance(node.op, ast.Sub) else ast.Sub()}
    if isinstance(node, ast.Compare):
        return {"ops": [ast.Lt() if isinstance(node.ops[0], ast.LtE) else ast.LtE(), *node.ops[1:]]}
    return None


def mutants_of(definition):
    """Yield the code of a function or a statement, each time with one change."""
    whole = ast.Module([definition], [])
    for block, index in [*statements_of(whole)]:
        statement = block[index]
        block[index] = ast.Pass()
        yield ast.unparse(whole)
        block[index] = statement
        for node in [statement, *expressions_of(statement)]:
            if fields := changed(node):
                before = vars(node).copy()
                vars(node).update(fields)
                yield ast.unparse(whole)
                vars(node).update(before)


@pytest.mark.parametrize("name", deciding_files())
def test_each_statement_changes_the_fingerprint(name):
    """Each is removed, and each of its numbers, operators and comparisons is changed."""
    number, definitions = 0, ast.parse((SRC / name).read_text()).body
    for definition in definitions:
        for part in definition.body if isinstance(definition, ast.ClassDef) else [definition]:
            original = arithmetic_of(ast.unparse(part))
            for mutant in mutants_of(part):
                number += 1
                assert arithmetic_of(mutant) != original, mutant
    assert number > 3


CODE_BEFORE = """
def __post_init__(self):
    check(self.x, "above 0")

def half(x):
    \"\"\"Return half of x.\"\"\"
    print(f"half of {x}")
    if x < 0:
        problem = f"x is {x}"
        raise ValueError(f"{problem}, " "needed: 0 or more")
    name = "half"
    return x / 2, name
"""
KEPT = [
    ("Return half of x.", "Halve x."),
    ("    return x / 2", "    # Half of it.\n    return (x / 2)"),
    ('"above 0"', '"positive"'),
    ('f"{problem}, " "needed: 0 or more"', '"negative: " + str(x)'),
    ("x is {x}", "found {x}"),
    ("half of {x}", "{x} in two"),
]
CHANGED = [("x / 2", "x / 3"), ("x < 0", "x <= 0"), ("ValueError", "KeyError"), ("def half", "def halve"),
           ('name = "half"', 'name = "halves"')]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), KEPT + CHANGED)
def test_code_counts_and_words_do_not(old, new):
    assert old in CODE_BEFORE
    is_same = arithmetic_of(CODE_BEFORE.replace(old, new)) == arithmetic_of(CODE_BEFORE)
    assert is_same == ((old, new) in KEPT)
