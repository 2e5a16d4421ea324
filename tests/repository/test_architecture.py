"""Check who imports whom in src/ and extras/, and that all requirements pin the same versions."""

import ast
import re
import runpy
from graphlib import TopologicalSorter
from pathlib import Path

from support import ROOT
from support.imports import closure, import_graph, imported_names

SRC = ROOT / "src"
GRAPH = import_graph(SRC)
FILES = list(GRAPH)

# What each package of src/lm may import from the others. A new arrow is a decision: it is made here.
MAY_IMPORT = {
    "core": set(),
    "text": {"core"},
    "tokens": {"core"},
    "tokenizer": {"core", "text", "tokens"},
    "exact": {"core"},
    "model": {"core", "tokens", "exact"},
    "train": {"core", "tokens", "tokenizer", "exact", "model"},
    "evaluate": {"core", "tokens", "tokenizer", "exact", "model"},
    "plots": {"core", "tokens"},
}


def name_of(path: Path) -> str:
    """Return a path as it is written from src on, such as lm/core/files.py."""
    return path.relative_to(SRC).as_posix()


def package_of(path: Path) -> str:
    """Return lm/core for a module in src/lm/core, tools/common for one in src/tools/common, stage for a stage."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return "/".join(parts[:2]) if parts[0] in ("lm", "tools") else "stage"


def arrows(of: str) -> list[tuple[str, str, str]]:
    """Return (importing file, its package, imported package) for the packages whose names begin with `of`."""
    pairs = [(path, imported) for path, all_imported in GRAPH.items() for imported in all_imported]
    found = {(name_of(path), package_of(path), package_of(imported)) for path, imported in pairs}
    return sorted(
        (name, package, target) for name, package, target in found if package.startswith(of) and package != target
    )


def stages() -> list[Path]:
    """Return the scripts in src itself; `__main__.py` and the packages are not stages."""
    return [path for path in FILES if path.parent == SRC and not path.name.startswith("__")]


# Imports.


def test_packages_of_the_library_import_only_what_the_table_allows():
    forbidden = [
        (name, target) for name, package, target in arrows("lm/")
        if target not in {f"lm/{allowed}" for allowed in MAY_IMPORT[package.removeprefix("lm/")]}
    ]  # fmt: skip
    assert forbidden == []


def test_the_table_names_the_packages_that_exist():
    packages = {package_of(path) for path in FILES if name_of(path).startswith("lm/") and path.name != "__init__.py"}
    assert packages == {f"lm/{package}" for package in MAY_IMPORT}


def test_stages_import_the_library_and_nothing_else():
    assert [arrow for arrow in arrows("stage") if not arrow[2].startswith("lm/")] == []
    assert [path.name for path in stages() if GRAPH[path] & set(stages())] == []


def test_a_tool_imports_the_library_and_common_and_no_other_tool():
    assert [arrow for arrow in arrows("tools/") if not arrow[2].startswith(("lm/", "tools/common"))] == []
    assert [arrow for arrow in arrows("tools/common") if not arrow[2].startswith("lm/")] == []


def test_extras_import_the_library_common_and_themselves_and_nothing_imports_them():
    """Benchmarks and tests may import them: they measure and test them."""
    for path in [*FILES, *(path for path in (ROOT / "extras").glob("*/*.py"))]:
        allowed = ("lm.", "tools.common.", ".".join((*path.relative_to(ROOT).parts[:2], "")))
        names = [names[0] for names in imported_names(path, ROOT) if names[0].startswith(("lm.", "tools.", "extras."))]
        if path in FILES:
            assert [name for name in names if name.startswith("extras.")] == [], path
        else:
            assert [name for name in names if not name.startswith(allowed)] == [], path


def test_every_tool_is_in_the_table_of_python_src():
    """A tool is a module with a function `main` in src/tools or extras."""
    modules = [path for folder in ("src/tools", "extras") for path in (ROOT / folder).rglob("*.py")]
    defined = {path: {getattr(node, "name", "") for node in ast.parse(path.read_text()).body} for path in modules}
    tools = {path for path, names in defined.items() if "main" in names}
    program = runpy.run_path(str(SRC / "__main__.py"))
    assert {program["path_of"](module) for module in program["TOOLS"].values()} == tools
    assert all(program["summary"](module) for module in program["TOOLS"].values())


def test_nothing_imports_a_stage():
    assert [(name_of(path), name_of(stage)) for path in FILES for stage in stages() if stage in GRAPH[path]] == []


def test_modules_import_each_other_in_no_circle():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError with the circle


def test_entry_points_that_can_load_torch_first_import_its_settings():
    """Tools are loaded by __main__.py, and transformers loads torch."""
    heavy = {"torch", "transformers"}
    roots = {path: [names[0].partition(".")[0] for names in imported_names(path, SRC)] for path in FILES}
    loads_torch = {path for path, names in roots.items() if heavy & {*names}}
    entries = [path for path in stages() if closure(GRAPH, [path]) & loads_torch]
    assert {"train.py", "eval.py"} <= {path.name for path in entries}
    for path in [SRC / "__main__.py", *entries]:
        names = [names[0] for names in imported_names(path, SRC)]
        ours = [name for name, root in zip(names, roots[path], strict=True) if root in {"lm", *heavy}]
        assert ours[0] == "lm.core.environment", name_of(path)


def test_the_library_holds_only_what_a_stage_needs():
    needed = closure(GRAPH, stages())
    library = [path for path in FILES if name_of(path).startswith("lm/") and path.name != "__init__.py"]
    assert [name_of(path) for path in library if path not in needed] == []


def test_a_package_imports_nothing_by_itself():
    """`import lm.core.errors` must not load the rest of the library."""
    for path in FILES:
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text()).body) <= 1, name_of(path)


def test_few_modules_name_kinds_of_gpus():
    """Every other module asks them, or only whether a device is the CPU."""
    kinds = re.compile(r"\b(torch\.cuda|is_cuda)\b|[\"']cuda\b")
    assert {name_of(path) for path in FILES if kinds.search(path.read_text())} == {
        "lm/core/numerics.py",
        "lm/exact/functions.py",
        "lm/exact/gpu/launch.py",
        "lm/model/machine.py",
    }


# Requirements.


def test_a_package_has_the_same_version_in_all_requirements():
    pins: dict[str, set[str]] = {}
    for path in [ROOT / "requirements.txt", *ROOT.glob("requirements/*.txt")]:
        for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s#]+)", path.read_text(), re.M):
            pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
