"""Check the rooms of src/: who imports whom, how large files and functions are, that public names have docstrings."""

import ast
import re
from pathlib import Path

import pytest

import house
from support import ROOT

SRC = ROOT / "src"
GRAPH = house.import_graph(SRC)
FILES = list(GRAPH)

# What each room of src/lm may import from the others. A new arrow is a decision: it is made here.
MAY_IMPORT = {
    "core": set(),
    "text": {"core"},
    "tokens": {"core"},
    "tokenizer": {"core", "text", "tokens"},
    "model": {"core", "tokens"},
    "train": {"core", "tokens", "model"},
    "evaluate": {"core", "text", "tokens", "tokenizer", "model"},
    "formats": {"core", "tokens", "model"},
    "plots": {"core", "tokens"},
}
MAX_MODULES, MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_TEST_LINES = 13, 300, 60, 400

# What people give to a DataLoader. No stage needs to import it.
FOR_DATA_LOADERS = "lm/formats"

# Test files that are still to be split. Remove a line with its split; add none.
TOO_LONG: set[str] = set()


def name_of(path: Path) -> str:
    """Return a path as it is written from src on, such as lm/core/files.py."""
    return path.relative_to(SRC).as_posix()


def room_of(path: Path) -> str:
    """Return lm/core for a module in src/lm/core, tools/common for one in src/tools/common, stage for a stage."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return "/".join(parts[:2]) if parts[0] in ("lm", "tools") else "stage"


def arrows(of: str) -> list[tuple[str, str, str]]:
    """Return (importing file, its room, imported room) for the rooms whose names begin with `of`."""
    pairs = [(path, imported) for path, all_imported in GRAPH.items() for imported in all_imported]
    found = {(name_of(path), room_of(path), room_of(imported)) for path, imported in pairs}
    return sorted((name, room, target) for name, room, target in found if room.startswith(of) and room != target)


def stages() -> list[Path]:
    """Return the scripts in src itself; `__main__.py` and the packages are not stages."""
    return [path for path in FILES if path.parent == SRC and not path.name.startswith("__")]


def closure(paths: list[Path]) -> set[Path]:
    """Return the files and all that they import, directly or not."""
    reached, pending = set(paths), list(paths)
    while pending:
        new = GRAPH[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


# Imports.


def test_rooms_of_the_library_import_only_what_the_table_allows():
    forbidden = [
        (name, target) for name, room, target in arrows("lm/")
        if target not in {f"lm/{allowed}" for allowed in MAY_IMPORT[room.removeprefix("lm/")]}
    ]  # fmt: skip
    assert forbidden == []


def test_the_table_names_the_rooms_that_exist():
    rooms = {room_of(path) for path in FILES if name_of(path).startswith("lm/") and path.name != "__init__.py"}
    assert rooms == {f"lm/{room}" for room in MAY_IMPORT}


def test_stages_import_the_library_and_nothing_else():
    assert [arrow for arrow in arrows("stage") if not arrow[2].startswith("lm/")] == []
    assert [path.name for path in stages() if GRAPH[path] & set(stages())] == []


def test_a_tool_imports_the_library_and_common_and_no_other_tool():
    assert [arrow for arrow in arrows("tools/") if not arrow[2].startswith(("lm/", "tools/common"))] == []
    assert [arrow for arrow in arrows("tools/common") if not arrow[2].startswith("lm/")] == []


def test_nothing_imports_a_stage():
    assert [(name_of(path), name_of(stage)) for path in FILES for stage in stages() if stage in GRAPH[path]] == []


def test_modules_import_each_other_in_no_circle():
    assert [[name_of(path) for path in cycle] for cycle in house.import_cycles(GRAPH)] == []


def test_entry_points_that_can_load_torch_first_import_its_settings():
    """Tools are loaded by __main__.py, and transformers loads torch."""
    heavy = {"torch", "transformers"}
    roots = {path: [names[0].partition(".")[0] for names in house.imported_names(path, SRC)] for path in FILES}
    loads_torch = {path for path, names in roots.items() if heavy & {*names}}
    entries = [path for path in stages() if closure([path]) & loads_torch]
    assert {"train.py", "eval.py"} <= {path.name for path in entries}
    for path in [SRC / "__main__.py", *entries]:
        names = [names[0] for names in house.imported_names(path, SRC)]
        ours = [name for name, root in zip(names, roots[path], strict=True) if root in {"lm", *heavy}]
        assert ours[0] == "lm.core.environment", name_of(path)


def test_the_library_holds_only_what_a_stage_or_a_data_loader_needs():
    data_loaders = [path for path in FILES if name_of(path).startswith(FOR_DATA_LOADERS)]
    needed = closure(stages() + data_loaders)
    library = [path for path in FILES if name_of(path).startswith("lm/") and path.name != "__init__.py"]
    assert [name_of(path) for path in library if path not in needed] == []


def test_a_package_imports_nothing_by_itself():
    """`import lm.core.errors` must not load the rest of the library."""
    for path in FILES:
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text()).body) <= 1, name_of(path)


def test_a_forbidden_import_would_be_found(tmp_path):
    """The graph sees absolute and relative imports, of modules and of names, also inside functions."""
    code = {
        "a.py": "import room.b", "room/__init__.py": "", "room/b.py": "from room import c\nfrom . import d",
        "room/c.py": "def f():\n    from .d import g", "room/d.py": "from ..a import h\nimport os",
    }  # fmt: skip
    for name, text in code.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = {path.stem: {other.stem for other in imported} for path, imported in house.import_graph(tmp_path).items()}
    assert graph == {"a": {"b"}, "__init__": set(), "b": {"c", "d"}, "c": {"d"}, "d": {"a"}}
    assert len(house.import_cycles(house.import_graph(tmp_path))) == 1


def test_two_modules_alone_name_kinds_of_gpus():
    """Every other module asks lm.model.device or lm.model.accelerator, or only whether a device is the CPU."""
    kinds = re.compile(r"\b(torch\.cuda|torch\.mps|backends\.mps|is_cuda)\b|[\"'](cuda|mps)\b")
    assert {name_of(path) for path in FILES if kinds.search(path.read_text())} == {
        "lm/model/accelerator.py",
        "lm/model/device.py",
    }


# Sizes and docstrings.


def test_no_folder_holds_more_modules_than_a_person_can_survey():
    counts = {name_of(folder): count for folder, count in house.modules_per_folder(SRC).items()}
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_files_and_functions_are_short():
    assert {name_of(path): lines for path in FILES if (lines := house.num_lines(path)) > MAX_FILE_LINES} == {}
    lengths = {
        f"{name_of(path)}:{function.name}": house.length_of(function)
        for path in FILES for function in house.functions_of(path)
    }  # fmt: skip
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_test_files_are_short():
    lines = {path.relative_to(ROOT).as_posix(): house.num_lines(path) for path in (ROOT / "tests").rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MAX_TEST_LINES and name not in TOO_LONG} == {}
    assert {name for name in TOO_LONG if lines.get(name, 0) <= MAX_TEST_LINES} == set(), (
        "split: remove it from TOO_LONG"
    )


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_public_names_have_docstrings(path):
    """A method of a class with a base, such as nn.Module.forward, may leave it to the base."""
    tree = ast.parse(path.read_text())
    derived = {item for node in tree.body if isinstance(node, ast.ClassDef) and node.bases for item in node.body}
    overrides = {item.lineno for item in derived}
    public = [node for node in house.public_definitions(path) if node.lineno not in overrides]
    assert ast.get_docstring(tree) is not None
    assert [node.name for node in public if ast.get_docstring(node) is None] == []
