"""Check who imports whom in src/ and extras/, and that all requirements pin the same versions."""

import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from support import ROOT
from support.imports import closure, import_graph, imported_names

SRC = ROOT / "src"
GRAPH = import_graph(SRC)
FILES = list(GRAPH)

# A package imports only those before it. A stage is imported by nothing; other tools than the record come last.
PACKAGES = ["evidence", "lm/core", "lm/text", "lm/tokens", "lm/tokenizer", "lm/exact", "lm/model", "lm/train"]
PACKAGES += ["lm/evaluate", "lm/plots", "tools/record"]


def package_of(path: Path) -> str:
    """Return lm/core for a module in src/lm/core, tools/record for one in src/tools/record, evidence, or stage."""
    parts = path.relative_to(SRC).with_suffix("").parts
    if parts[0] == "evidence":
        return "evidence"
    return "/".join(parts[:2]) if parts[0] in ("lm", "tools") else "stage"


def stages() -> list[Path]:
    """Return the scripts in src itself; `__main__.py` and the packages are not stages."""
    return [path for path in FILES if path.parent == SRC and not path.name.startswith("__")]


# Imports.


def test_packages_import_only_those_before_them():
    for path, imported_paths in GRAPH.items():
        package = package_of(path)
        before = PACKAGES[: PACKAGES.index(package)] if package in PACKAGES else PACKAGES
        for imported_path in imported_paths:
            imported = package_of(imported_path)
            is_itself = imported == package != "stage"
            assert is_itself or imported in before, (path, imported_path)


def test_evidence_imports_numpy_and_scipy_alone():
    """It is installed without the rest, by people who train with other programs; functions may import two more."""
    known = sys.stdlib_module_names | {"evidence", "numpy", "scipy", "pyarrow", "matplotlib"}
    for path in (SRC / "evidence").rglob("*.py"):
        assert {package for _, package in first_names(path)} <= known, path
        assert not re.search(r"^(import|from) (pyarrow|matplotlib)", path.read_text(), re.M), path


def test_modules_import_each_other_in_no_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError with the circle


def first_names(path: Path) -> list[tuple[str, str]]:
    """Return (full name, package) of the imports of a file, in their order."""
    names = [longest_name for longest_name, *_ in imported_names(path)]
    return [(name, name.partition(".")[0]) for name in names]


LOAD_TORCH = {"torch", "transformers"}


def test_entry_points_that_can_load_torch_first_import_its_settings():
    """Tools are loaded by __main__.py, and transformers loads torch."""
    heavy_modules = {path for path in FILES if LOAD_TORCH & {package for _, package in first_names(path)}}
    entries = [path for path in stages() if closure(GRAPH, [path]) & heavy_modules]
    assert {"train.py", "eval.py"} <= {path.name for path in entries}

    for path in [SRC / "__main__.py", *entries]:
        decisive = [name for name, package in first_names(path) if package in {"lm", *LOAD_TORCH}]
        assert decisive[0] == "lm.core.environment", path


# Requirements.


def test_a_package_has_the_same_version_in_all_requirements():
    pin = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s#]+)", re.M)
    files = [ROOT / "requirements.txt", *ROOT.glob("requirements/*.txt")]
    versions_of: dict[str, set[str]] = {}

    for path in files:
        for name, version in pin.findall(path.read_text()):
            normalized_name = re.sub(r"[-_.]+", "-", name).lower()
            versions_of.setdefault(normalized_name, set()).add(version)

    for name, versions in versions_of.items():
        assert len(versions) == 1, (name, versions)
