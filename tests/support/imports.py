"""Read from the syntax trees of a folder which of its files import which."""

import ast
from collections.abc import Iterable
from pathlib import Path


def imported_names(path: Path, folder: Path) -> list[tuple[str, ...]]:
    """Return the imports of a file, also inside functions: for each the modules it can mean, the longest name first."""
    package = path.relative_to(folder).parts[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [(f"{base}.{alias.name}".lstrip("."), base) for alias in node.names]
    return found


def import_graph(folder: Path) -> dict[Path, set[Path]]:
    """Return, for each Python file below a folder, the other files there that it imports directly."""
    files = sorted(folder.rglob("*.py"))
    parts = {path: path.relative_to(folder).with_suffix("").parts for path in files}
    modules = {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts.items()}
    graph: dict[Path, set[Path]] = {}
    for path in files:
        candidates = imported_names(path, folder)
        graph[path] = {next((modules[name] for name in each if name in modules), path) for each in candidates} - {path}
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
