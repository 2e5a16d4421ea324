"""Read from the syntax trees of a folder which of its files import which."""

import ast
from collections.abc import Iterable
from pathlib import Path


def imported_names(path: Path, folder: Path) -> list[tuple[str, ...]]:
    """Return the imports of a file, also inside functions: for each the modules it can mean, the longest name first."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append((alias.name,))
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, path.relative_to(folder))
            for alias in node.names:
                found.append((f"{base}.{alias.name}".lstrip("."), base))
    return found


def base_of(node: ast.ImportFrom, path: Path) -> str:
    """Return the full name of the module from which a file imports; `path` is relative to the folder of imports."""
    if node.level == 0:
        return node.module or ""
    package = path.parts[:-1]
    names = list(package[: len(package) - node.level + 1])
    if node.module:
        names.append(node.module)
    return ".".join(names)


def module_name(path: Path) -> str:
    """Return the name by which a file is imported; `path` is relative to the folder of imports."""
    names = path.with_suffix("").parts
    if names[-1] == "__init__":
        names = names[:-1]
    return ".".join(names)


def import_graph(folder: Path) -> dict[Path, set[Path]]:
    """Return, for each Python file below a folder, the other files there that it imports directly."""
    files = sorted(folder.rglob("*.py"))
    file_of_module = {module_name(path.relative_to(folder)): path for path in files}
    graph: dict[Path, set[Path]] = {}
    for path in files:
        graph[path] = set()
        for candidates in imported_names(path, folder):
            known = [file_of_module[name] for name in candidates if name in file_of_module]
            if known:
                graph[path].add(known[0])
        graph[path].discard(path)
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
