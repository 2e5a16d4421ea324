"""lm.exact.gpu without a GPU: its values in Triton's interpreter.

Other processes compute them, because Triton reads when it is imported whether it interprets.
"""

import json
import os
import subprocess
import sys

import pytest

from support import ROOT
from support.gpu_cases import CASES

INTERPRET = """
import sys
import support.triton_interpreter  # before the kernels
from support import gpu_cases
gpu_cases.CASES = {name: gpu_cases.CASES[name] for name in sys.argv[1:]}
gpu_cases.main()
"""
QUICK = (
    "product_of_layouts",
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
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", INTERPRET, *cases]

    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["case"]: set(line["differences"]) for line in lines} == {case: {0} for case in cases}
