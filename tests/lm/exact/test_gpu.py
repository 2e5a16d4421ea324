"""lm.exact.gpu without a GPU: its values in Triton's interpreter, and the instructions that the compiler makes.

Other processes compute them, because Triton reads when it is imported whether it interprets.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys

import pytest

from lm.exact import gpu
from lm.exact.cpu import kernels as of_cpu
from lm.exact.gpu import kernels as of_gpu
from support import ROOT
from support.gpu_cases import CASES

ROUNDED = {"fma.rn", "add.rn", "sub.rn", "mul.rn", "div.rn", "sqrt.rn"}  # as IEEE 754 says
EXACT = {"max", "abs", "neg"}
CONVERSIONS = {"cvt.rn.f32", "cvt.rn.f64", "cvt.f64.f32", "cvt.rn.f32.f64", "cvt.rzi.s64.f64"}
MODULES = [importlib.import_module(f"lm.exact.gpu.{module.name}") for module in pkgutil.iter_modules(gpu.__path__)]
KERNELS = {name for module in MODULES for name in vars(module) if name.endswith("_kernel")}


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


# Compute capabilities: T4, A100, L4 and RTX 40, H100, RTX 50.
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["75", "80", "89", "90", "120"])
def test_every_kernel_is_compiled_without_another_rounding(capability):
    """An operation without .rn may be joined with another; .ftz, .approx and .full have other results."""
    few_numbers = {"matrix_sizes_kernel", "block_sums_kernel"}  # one for each matrix; the addresses of blocks

    compiled = lines_of("-m", "support.gpu_code", capability)

    assert {line["kernel"] for line in compiled} == KERNELS
    for line in compiled:
        kernel = line["kernel"]
        for operation in line["operations"]:
            name = operation.rsplit(".", 1)[0]
            assert name in ROUNDED | EXACT or operation in CONVERSIONS, (kernel, operation)
        assert not line["atomics"], f"{kernel} adds in any order"
        assert not line["joins"], f"the compiler of instructions may join those of {kernel}"
        assert 64 in line["offset_bits"] or kernel in few_numbers, f"{kernel} counts numbers by 32 bits"
        if line["tile"]:
            check_products(line)


def check_products(line: dict) -> None:
    """Check that a program joins the terms of its tile, in one loop or in two, and nothing else."""
    BM, BN, BK = line["tile"]
    terms_of_thread = BM * BN * BK // line["threads"]
    single = line["operations"].get("fma.rn.f32", 0)
    double = line["operations"].get("fma.rn.f32x2", 0)  # two operations in one, from 10.0 on
    num_fma = single + 2 * double
    assert num_fma > 0, line
    assert num_fma % terms_of_thread == 0, line
