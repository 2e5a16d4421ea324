"""Compiled loops: kept code that is damaged or cannot be kept is compiled again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lm.exact import order
from support import ROOT

# Print exp(-100), which counts as exp(-41.5), and how many kept loops were used.
EXP = """
import numpy as np
from lm.exact.cpu.elementary import exp
print(float(exp(np.float32(-100))), sum(exp.stats.cache_hits.values()))
"""
EXPONENTIAL = float(order.exp(np.float32(-41.5)))


def compute(folder: Path, **environment: str) -> tuple[float, int]:
    """Return what EXP prints with the package in `folder`."""
    own = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    own |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", EXP], env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result, num_kept = done.stdout.split()
    return float(result), int(num_kept)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """A copy of the package with the code that its first use has kept."""
    folder = tmp_path_factory.mktemp("compiled")
    shutil.copytree(ROOT / "src" / "lm", folder / "lm", ignore=shutil.ignore_patterns("__pycache__"))
    assert compute(folder) == (EXPONENTIAL, 0)
    return folder


@pytest.fixture
def package(compiled, tmp_path) -> Path:
    return Path(shutil.copytree(compiled, tmp_path / "src"))


def kept_file(package: Path, suffix: str) -> Path:
    (path,) = package.glob(f"lm/exact/cpu/__pycache__/elementary.exp-*{suffix}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_cut_file_is_made_again(package, suffix):
    path = kept_file(package, suffix)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    assert compute(package) == (EXPONENTIAL, 0)
    assert compute(package) == (EXPONENTIAL, 1)


@pytest.mark.slow
def test_a_changed_constant_of_another_file_counts(package):
    """numba compiles it into the loop, whose own file does not change."""
    path = package / "lm" / "exact" / "order.py"
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace("np.float32(-41.5)", "np.float32(-10.0)"), encoding="utf-8")

    assert compute(package) == (float(order.exp(np.float32(-10))), 0)


@pytest.mark.slow
def test_a_package_without_a_folder_for_code_computes(package, tmp_path):
    kept = package / "lm" / "exact" / "cpu" / "__pycache__"
    shutil.rmtree(kept)
    for path in (kept, tmp_path / "file"):
        path.write_text("no folder", encoding="utf-8")
    nowhere = str(tmp_path / "file" / "folder")

    assert compute(package, HOME=nowhere, XDG_CACHE_HOME=nowhere) == (EXPONENTIAL, 0)
