"""Read from the syntax trees of a folder which of its files import which."""

import ast
from collections.abc import Iterable
from pathlib import Path


def imported_names(path: Path) -> list[tuple[str, ...]]:
    """Return the imports of a file, also inside functions: for each the modules it can mean, the longest name first."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found += [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
    return found


def import_graph(folder: Path) -> dict[Path, set[Path]]:
    """Return, for each Python file below a folder, the other files there that it imports directly."""
    files = sorted(folder.rglob("*.py"))
    modules = {}
    for path in files:
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path

    graph: dict[Path, set[Path]] = {}
    for path in files:
        imported = set()
        for names in imported_names(path):
            known = [modules[name] for name in names if name in modules]
            imported |= set(known[:1])
        graph[path] = imported - {path}
    return graph


def closure(graph: dict[Path, set[Path]], paths: Iterable[Path]) -> set[Path]:
    """Return the files and all that they import, directly or not."""
    reached = set(paths)
    pending = list(paths)
    while pending:
        new = graph[pending.pop()] - reached
        reached |= new
        pending += new
    return reached
