"""The fingerprint of a run covers parameters, inputs, versions and each statement that the loop can reach."""

import copy
import dataclasses
from pathlib import Path

import pytest

from lm.core.params import read_section
from lm.model.config import ModelConfig
from lm.tokens.tokenfile import open_tokens
from lm.train import fingerprint as module
from lm.train.config import TrainParams
from lm.train.fingerprint import code_files, run_fingerprint
from lm.train.run import Run
from support import ROOT
from support.imports import closure, import_graph
from support.train_cases import write_ids
from support.workspace import MICRO_MODEL

SRC = ROOT / "src"
PARAMS = read_section(ROOT / "params.yaml", "train", TrainParams)
CONFIG = ModelConfig(**MICRO_MODEL, vocab_size=50)


@pytest.fixture
def token_files(tmp_path, monkeypatch):
    """Two token files in the current directory, where nothing but train.py is the code that counts."""
    monkeypatch.chdir(tmp_path)
    write_ids("train.bin", 300)
    write_ids("validation.bin", 200)
    monkeypatch.setattr(module, "SOURCE", tmp_path / "src")
    Path("src").mkdir()
    Path("src/train.py").write_text("STEPS = 1\n")


def current(params=PARAMS, config=CONFIG, initial_sha256=None, train="train.bin", validation="validation.bin") -> str:
    return run_fingerprint(params, config, initial_sha256, [Path(train), Path(validation)])


def another(section, name):
    """Return a section with another value of one field, without the checks of its ranges."""
    changed_section = copy.copy(section)
    object.__setattr__(changed_section, name, "another value")
    return changed_section


def names_of(section):
    return [field.name for field in dataclasses.fields(section)]


# Parameters, inputs, versions.


def test_each_parameter_and_each_number_of_the_shape_counts(token_files):
    runs = [current()]
    runs += [current(params=another(PARAMS, name)) for name in names_of(TrainParams)]
    runs += [current(config=another(CONFIG, name)) for name in names_of(ModelConfig)]

    assert len(set(runs)) == len(runs)


def test_each_input_counts(token_files):
    write_ids("other.bin", 250)

    fingerprints = [
        current(),
        current(initial_sha256="ab" * 32),
        current(initial_sha256="cd" * 32),
        current(train="other.bin"),
        current(validation="other.bin"),
        current(train="validation.bin", validation="train.bin"),
    ]

    assert len(set(fingerprints)) == len(fingerprints)
    assert current(train=Path("train.bin").absolute()) == fingerprints[0], "by its content, not by its name"


@pytest.mark.parametrize("name", ["torch.__version__", "numpy.__version__"])
def test_the_version_of_each_library_counts(token_files, monkeypatch, name):
    before = current()

    monkeypatch.setattr(name, "9.9.9")

    assert current() != before


def test_runs_that_may_extend_each_other_differ_in_length_alone(token_files):
    """A run begins with the checkpoint of another one only if they have the same `length_free`."""
    without_change = length_free_of(PARAMS)

    for name in ("max_tokens", "seq_len", "peak_lr", "schedule", "seed", "decay_fraction"):
        is_same = length_free_of(another(PARAMS, name)) == without_change
        assert is_same == (name == "max_tokens"), name


def length_free_of(params):
    train = open_tokens("train.bin")
    validation = open_tokens("validation.bin")
    return Run(params, CONFIG, train, validation, initial=None, initial_sha256=None, ngrams=None).length_free


# Code.


def test_each_module_that_the_loop_imports_counts():
    paths = closure(import_graph(SRC), [SRC / "train.py"])

    imported = {str(path.relative_to(SRC)) for path in paths}

    assert imported <= set(code_files()), "a folder is missing in CODE_FOLDERS"
    assert "lm/tokenizer/load.py" in imported, "an import inside a function"


def write_code(name, text):
    """Write a module below lm/train."""
    path = Path("src/lm/train", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


CODE = '''
"""A module."""
import importlib

class Half:
    """Half of something."""

    variant = "norm"

    def __post_init__(self):
        """Halve."""
        self.x.mul_(0.5)

    async def halve(x, times=1):
        """Halve x."""
        print(x.mul_(0.5))
        importlib.import_module("lm.model.half")
        if x < 0:
            raise ValueError(f"x is {x.neg_()}") from x.sub_(2)
        return {"half": x / 2}
'''
SAME = {
    '"""A module."""': '"""Another module."""',
    '        """Halve."""\n': "",
    '"""Halve x."""': '"""Divide x by two."""',
    "        print": "        # Say it.\n        print",
    'return {"half": x / 2}': "return {\n            'half': (x/2),\n        }",
}
OTHER = {
    'variant = "norm"': 'variant = "half"',
    "self.x.mul_(0.5)": "self.x.mul_(0.6)",
    "print(x.mul_(0.5))": "print(x.mul_(0.6))",
    "x.neg_()": "x.abs_()",
    "x.sub_(2)": "x.sub_(3)",
    "x < 0": "x <= 0",
}


def test_all_code_counts_but_explanations_do_not(token_files):
    write_code("half.py", CODE)
    before = current()

    for changes, counts in ((SAME, False), (OTHER, True)):
        for old, new in changes.items():
            assert CODE.count(old) == 1
            write_code("half.py", CODE.replace(old, new))
            assert (current() != before) == counts, new
