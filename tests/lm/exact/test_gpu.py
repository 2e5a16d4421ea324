"""lm.exact.gpu without a GPU: its values in Triton's interpreter.

Other processes compute them, because Triton reads when it is imported whether it interprets.
"""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest

from lm.exact.cpu import kernels as of_cpu
from lm.exact.gpu import kernels as of_gpu
from support import ROOT
from support.gpu_cases import CASES


def lines_of(*command: str) -> list[dict]:
    """Return what a Python program prints, a line of JSON after the other."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_both_machines_have_the_functions_that_are_called():
    source = (ROOT / "src" / "lm" / "exact" / "functions.py").read_text(encoding="utf-8")
    names = set(re.findall(r"\bkernels(?:_of\([\w\[\]]+\))?\.(\w+)", source))

    assert {"multiply", "attention_gradient", "adamw"} <= names
    for name in names:
        on_cpu = inspect.signature(getattr(of_cpu, name)).parameters
        on_gpu = inspect.signature(getattr(of_gpu, name)).parameters
        assert list(on_cpu) == list(on_gpu), name


INTERPRET = """
import sys
import support.triton_interpreter  # before the kernels
from support import gpu_cases
gpu_cases.CASES = {name: gpu_cases.CASES[name] for name in sys.argv[1:]}
gpu_cases.main()
"""
QUICK = (
    "product_of_layouts",
    "product_tree",
    "gates",
    "attention_to_a_past",
    "losses",
    "softmax",
    "adamw",
    "sums_of_bags",
)
OTHERS = tuple(name for name in CASES if name not in QUICK)


@pytest.mark.parametrize("cases", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["quick", "others"])
def test_interpreted_kernels_have_the_bits_of_the_definition(cases):
    lines = lines_of("-c", INTERPRET, *cases)

    assert {line["case"]: set(line["differences"]) for line in lines} == {case: {0} for case in cases}
