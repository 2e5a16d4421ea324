"""Measure the shape of a folder of Python code: sizes, docstrings, import cycles, comments, and the README beside it.

    python benchmarks/house.py                        # this repository: a Markdown row, benchmarks/results/house.json
    python benchmarks/house.py ../nanochat --name nanochat

Only Python files count, so word lists (.txt) do not. docs/architecture.md shows this project beside its peers.
"""

import argparse
import ast
import io
import json
import re
import statistics
import tokenize
from collections import Counter
from pathlib import Path

import networkx

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "house.json"
COLUMNS = (
    "repository", "files / lines", "file median / max", "function median / p90 / max",
    "public functions with docstring", "import cycles", "modules in the largest folder", "README lines / words",
    "comment lines",
)  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder, sorted; hidden folders are left out."""
    found = sorted(folder.rglob("*.py"))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def num_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def functions_of(path: Path) -> list[Function]:
    """Return every function and method of a file, nested ones included."""
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, Function)]


def length_of(function: Function) -> int:
    """Return the lines of a function from `def` to its last line, without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def public_definitions(path: Path) -> list[Function | ast.ClassDef]:
    """Return the public functions and classes of a file and the public methods of those classes."""

    def is_public(node: ast.stmt) -> bool:
        return isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")

    top = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if is_public(node)]
    methods = [item for node in top if isinstance(node, ast.ClassDef) for item in node.body if is_public(item)]
    return [node for node in (*top, *methods) if isinstance(node, Function | ast.ClassDef)]


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
    files = python_files(folder)
    names = {}
    for path in files:
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names |= {name: path, f"{folder.name}.{name}".rstrip("."): path}
    graph: dict[Path, set[Path]] = {}
    for path in files:
        candidates = imported_names(path, folder)
        graph[path] = {next((names[name] for name in each if name in names), path) for each in candidates} - {path}
    return graph


def import_cycles(graph: dict[Path, set[Path]]) -> list[list[Path]]:
    """Return the groups of files that import each other in a circle."""
    components = networkx.strongly_connected_components(networkx.DiGraph(graph))
    return [sorted(component) for component in components if len(component) > 1]


def modules_per_folder(folder: Path) -> Counter:
    """Return the number of modules in each folder, `__init__.py` not counted."""
    return Counter(path.parent for path in python_files(folder) if path.name != "__init__.py")


def comment_lines(path: Path) -> int:
    """Return the number of lines with a comment, alone or after code; directives for tools do not count."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(not re.match(r"#\s*(!|fmt:|noqa|type:|pyright:|ruff:)", comment) for comment in comments)


def measure(folder: Path, readme: Path) -> dict:
    """Return the figures of the code in a folder and of a README, as house.json keeps them."""
    files = python_files(folder)
    sizes = [num_lines(path) for path in files]
    lengths = sorted(length_of(function) for path in files for function in functions_of(path))
    public = [node for path in files for node in public_definitions(path) if isinstance(node, Function)]
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    return {
        "files": len(files),
        "lines": sum(sizes),
        "file_median": round(statistics.median(sizes)),
        "file_max": max(sizes),
        "functions": len(lengths),
        "function_median": round(statistics.median(lengths)),
        "function_p90": lengths[int(0.9 * len(lengths))],
        "function_max": lengths[-1],
        "functions_over_30": sum(length > 30 for length in lengths),
        "public_with_docstring": sum(ast.get_docstring(node) is not None for node in public) / max(1, len(public)),
        "import_cycles": len(import_cycles(import_graph(folder))),
        "largest_folder": max(modules_per_folder(folder).values()),
        "readme_lines": len(text.splitlines()),
        "readme_words": len(text.split()),
        "comment_fraction": sum(map(comment_lines, files)) / sum(sizes),
    }


def row(name: str, figures: dict) -> str:
    """Return the figures of one repository as a row of a Markdown table."""
    cells = (
        name,
        f"{figures['files']} / {figures['lines']:,}",
        f"{figures['file_median']} / {figures['file_max']:,}",
        f"{figures['function_median']} / {figures['function_p90']} / {figures['function_max']}",
        f"{figures['public_with_docstring']:.0%}",
        figures["import_cycles"],
        figures["largest_folder"],
        f"{figures['readme_lines']} / {figures['readme_words']:,}",
        f"{figures['comment_fraction']:.1%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the row of a folder; write the figures of this repository to benchmarks/results/house.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("folder", nargs="?", type=Path, help="the code to measure (default: src of this repository)")
    parser.add_argument("--readme", type=Path, help="default: README.md in the folder or above it")
    parser.add_argument("--name", default="this project")
    arguments = parser.parse_args()
    folder = (arguments.folder or ROOT / "src").resolve()
    beside = [path / "README.md" for path in (folder, folder.parent)]
    figures = measure(folder, arguments.readme or next((path for path in beside if path.exists()), beside[0]))
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", row(arguments.name, figures), sep="\n")
    if arguments.folder is None:
        RESULT.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
