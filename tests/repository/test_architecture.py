"""Check who imports whom in src/ and extras/, and that all requirements pin the same versions."""

import ast
import re
import runpy
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from support import ROOT
from support.imports import closure, import_graph, imported_names

SRC = ROOT / "src"
GRAPH = import_graph(SRC)
FILES = list(GRAPH)

# What each package of src/lm may import from the others, and from src/evidence. A new arrow is a decision: it is made
# here.
MAY_IMPORT = {
    "core": set(),
    "text": {"core"},
    "tokens": {"core"},
    "tokenizer": {"core", "text", "tokens"},
    "exact": {"core"},
    "model": {"core", "tokens", "exact"},
    "train": {"core", "tokens", "tokenizer", "exact", "model"},
    "evaluate": {"core", "tokens", "tokenizer", "exact", "model", "evidence"},
    "plots": {"core", "tokens"},
}


class Arrow(NamedTuple):
    """A file imports something from another package."""

    file: str
    package: str
    imported_package: str


def name_of(path: Path) -> str:
    """Return a path as it is written from src on, such as lm/core/files.py."""
    return path.relative_to(SRC).as_posix()


def package_of(path: Path) -> str:
    """Return lm/core for a module in src/lm/core, tools/common for one in src/tools/common, evidence, or stage."""
    parts = path.relative_to(SRC).with_suffix("").parts
    if parts[0] == "evidence":
        return "evidence"
    return "/".join(parts[:2]) if parts[0] in ("lm", "tools") else "stage"


def arrows(prefix: str) -> list[Arrow]:
    """Return the imports from another package in the packages whose names begin with `prefix`."""
    found = set()
    for path, imported_paths in GRAPH.items():
        package = package_of(path)
        for imported_path in imported_paths:
            imported_package = package_of(imported_path)
            if package.startswith(prefix) and imported_package != package:
                found.add(Arrow(name_of(path), package, imported_package))
    return sorted(found)


def modules_of_library() -> list[Path]:
    """Return the modules of src/lm without the `__init__.py` of its packages."""
    return [path for path in FILES if name_of(path).startswith("lm/") and path.name != "__init__.py"]


def stages() -> list[Path]:
    """Return the scripts in src itself; `__main__.py` and the packages are not stages."""
    return [path for path in FILES if path.parent == SRC and not path.name.startswith("__")]


# Imports.


def test_packages_of_the_library_import_only_what_the_table_allows():
    for arrow in arrows("lm/"):
        allowed = MAY_IMPORT[arrow.package.removeprefix("lm/")]
        assert arrow.imported_package.removeprefix("lm/") in allowed, arrow


def test_the_table_names_the_packages_that_exist():
    packages = {package_of(path) for path in modules_of_library()}

    assert packages == {f"lm/{package}" for package in MAY_IMPORT}


def test_stages_import_the_library_and_no_other_stage():
    for arrow in arrows("stage"):
        assert arrow.imported_package.startswith("lm/"), arrow
    for stage in stages():
        assert GRAPH[stage].isdisjoint(stages()), stage


def test_a_tool_imports_the_library_and_common_and_no_other_tool():
    for arrow in arrows("tools/"):
        assert arrow.imported_package.startswith(("lm/", "evidence", "tools/common")), arrow


def test_the_code_that_tools_have_in_common_imports_the_library_and_evidence_alone():
    for arrow in arrows("tools/common"):
        assert arrow.imported_package.startswith(("lm/", "evidence")), arrow


def test_evidence_imports_numpy_and_scipy_alone():
    """It is installed without the rest, by people who train with other programs; pyarrow is imported to read a file."""
    for path in (SRC / "evidence").glob("*.py"):
        at_import = {name.partition(".")[0] for name in names_at_import(path)}
        anywhere = {package for _, package in first_names(path)}
        assert at_import <= sys.stdlib_module_names | {"evidence", "numpy", "scipy"}, path
        assert anywhere <= at_import | sys.stdlib_module_names | {"pyarrow"}, path


def names_at_import(path: Path) -> list[str]:
    """Return the names of the modules that a file imports outside functions."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


def own_imports(path: Path) -> list[str]:
    """Return the full names that a file imports from the library, the tools and the extras."""
    names = [longest_name for longest_name, *_ in imported_names(path, ROOT)]
    return [name for name in names if name.startswith(("evidence.", "lm.", "tools.", "extras."))]


def test_extras_import_the_library_common_and_themselves():
    for path in (ROOT / "extras").glob("*/*.py"):
        itself = f"extras.{path.parent.name}."
        for name in own_imports(path):
            assert name.startswith(("evidence.", "lm.", "tools.common.", itself)), path


def test_nothing_in_src_imports_extras():
    """Benchmarks and tests may import them: they measure and test them."""
    for path in FILES:
        assert not [name for name in own_imports(path) if name.startswith("extras.")], path


def defines_main(path: Path) -> bool:
    """Return True for a tool: a module with a function `main`."""
    names = {getattr(node, "name", "") for node in ast.parse(path.read_text()).body}
    return "main" in names


def test_every_tool_is_in_the_table_of_python_src():
    modules = [*(ROOT / "src/tools").rglob("*.py"), *(ROOT / "extras").rglob("*.py")]
    tools = {path for path in modules if defines_main(path)}

    program = runpy.run_path(str(SRC / "__main__.py"))
    listed = program["TOOLS"].values()

    assert {program["path_of"](module) for module in listed} == tools
    for module in listed:
        assert program["summary"](module), module


def test_nothing_imports_a_stage():
    for path in FILES:
        assert GRAPH[path].isdisjoint(stages()), path


def test_modules_import_each_other_in_no_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError with the circle


def first_names(path: Path) -> list[tuple[str, str]]:
    """Return (full name, package) of the imports of a file, in their order."""
    names = [longest_name for longest_name, *_ in imported_names(path, SRC)]
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


def test_the_library_holds_only_what_a_stage_needs():
    needed = closure(GRAPH, stages())

    unneeded = [name_of(path) for path in modules_of_library() if path not in needed]

    assert unneeded == []


def test_a_package_imports_nothing_by_itself():
    """`import lm.core.errors` must not load the rest of the library."""
    for path in FILES:
        if path.name == "__init__.py":
            statements = ast.parse(path.read_text()).body
            assert len(statements) <= 1, path  # a docstring


def test_few_modules_name_kinds_of_gpus():
    """Every other module asks them, or only whether a device is the CPU."""
    kinds = re.compile(r"\b(torch\.cuda|is_cuda)\b|[\"']cuda\b")

    modules = {name_of(path) for path in FILES if kinds.search(path.read_text())}

    assert modules == {
        "lm/core/numerics.py",
        "lm/exact/functions.py",
        "lm/exact/gpu/launch.py",
        "lm/model/machine.py",
    }


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
