"""lm.exact.gpu without a GPU: its values in Triton's interpreter, and the instructions that the compiler makes.

Two other processes compute them, because Triton reads when it is imported whether it interprets.
"""

import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lm.exact import gpu
from lm.exact.cpu import kernels as of_cpu
from lm.exact.gpu import kernels as of_gpu
from lm.exact.gpu.softmax import softmax_kernel
from support import ROOT
from support.gpu_cases import CASES

ROUNDED = {"fma.rn", "add.rn", "sub.rn", "mul.rn", "div.rn", "sqrt.rn"}  # as IEEE 754 says
EXACT = {"max", "abs", "neg"}
CONVERSIONS = {"cvt.rn.f32", "cvt.rn.f64", "cvt.f64.f32", "cvt.rn.f32.f64", "cvt.rzi.s64.f64"}
MODULES = [importlib.import_module(f"lm.exact.gpu.{module.name}") for module in pkgutil.iter_modules(gpu.__path__)]
KERNELS = {name for module in MODULES for name in vars(module) if name.endswith("_kernel")}


def lines_of(*command: str) -> list[dict]:
    """Return what a module of tests prints, a line of JSON after the other."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-m", *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict]:
    return {line["case"]: line for line in lines_of("support.gpu_cases")}


# Compute capabilities: T4, A100, L4 and RTX 40, H100, RTX 50.
CAPABILITIES = ["90", *(pytest.param(each, marks=pytest.mark.slow) for each in ("75", "80", "89", "120"))]


@pytest.fixture(scope="module", params=CAPABILITIES)
def compiled(request) -> list[dict]:
    return lines_of("support.gpu_code", request.param)


# Values.


@pytest.mark.parametrize("case", CASES)
def test_an_interpreted_kernel_has_the_bits_of_the_definition(interpreted, case):
    assert set(interpreted[case]["differences"]) == {0}


# Functions.


def names_that_functions_call() -> set[str]:
    source = (ROOT / "src" / "lm" / "exact" / "functions.py").read_text(encoding="utf-8")
    called = re.findall(r"\bkernels(?:_of\([\w\[\]]+\))?\.(\w+)", source)
    return set(called)


def test_both_machines_have_the_functions_that_are_called():
    names = names_that_functions_call()

    assert {"multiply", "attention_gradient", "adamw"} <= names
    for name in names:
        on_cpu = inspect.signature(getattr(of_cpu, name)).parameters
        on_gpu = inspect.signature(getattr(of_gpu, name)).parameters
        assert list(on_cpu) == list(on_gpu), name


# Kept code. Triton names it by a hash of the kernel's source and of what the kernel calls and reads.

KEY = softmax_kernel.cache_key
PRINT_KEY = "from lm.exact.gpu.softmax import softmax_kernel; print(softmax_kernel.cache_key, end='')"


def key_with_change(folder: Path, file: str, part: str, other: str) -> str:
    """Return the key of a kernel of a copy of the library, in which a part of another file has changed."""
    shutil.copytree(ROOT / "src" / "lm", folder / "lm", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "lm" / "exact" / file
    source = path.read_text(encoding="utf-8")
    assert source.count(part) == 1
    path.write_text(source.replace(part, other), encoding="utf-8")

    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", PRINT_KEY]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("file", "part", "other"),
    [
        pytest.param("gpu/elementary.py", "<< 23)  # p 2^whole", "<< 22)", id="a function"),
        pytest.param("order.py", "np.float32(-41.5)", "np.float32(-10.0)", id="a constant"),
    ],
)
def test_a_kernel_is_compiled_again_if_what_it_uses_of_another_file_changes(tmp_path, file, part, other):
    assert key_with_change(tmp_path, file, part, other) != KEY


# Instructions.


def test_every_kernel_is_compiled(compiled):
    assert {line["kernel"] for line in compiled} == KERNELS


def test_every_operation_is_rounded_to_nearest(compiled):
    """An operation without .rn may be joined with another; .ftz, .approx and .full have other results."""
    for line in compiled:
        for operation in line["operations"]:
            name = operation.rsplit(".", 1)[0]
            assert name in ROUNDED | EXACT or operation in CONVERSIONS, (line["kernel"], operation)


def test_nothing_is_added_by_atomics(compiled):
    assert [line["kernel"] for line in compiled if line["atomics"]] == []


def test_a_tensor_may_have_more_numbers_than_32_bits_count(compiled):
    few_numbers = {"matrix_sizes_kernel", "block_sums_kernel"}  # one for each matrix; the addresses of blocks

    for line in compiled:
        assert 64 in line["offset_bits"] or line["kernel"] in few_numbers, line["kernel"]


def test_the_compiler_of_instructions_may_join_nothing(compiled):
    assert {line["joins"] for line in compiled} == {False}


def test_products_have_as_many_fma_as_terms(compiled):
    """A program joins the terms of its tile, in one loop or in two, and nothing else."""
    products = [line for line in compiled if line["tile"]]

    assert len({line["kernel"] for line in products}) == 4
    for line in products:
        BM, BN, BK = line["tile"]
        terms_of_thread = BM * BN * BK // line["threads"]
        single = line["operations"].get("fma.rn.f32", 0)
        double = line["operations"].get("fma.rn.f32x2", 0)  # two operations in one, from 10.0 on
        num_fma = single + 2 * double
        assert num_fma > 0, line
        assert num_fma % terms_of_thread == 0, line
