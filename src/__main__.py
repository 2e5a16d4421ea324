"""Run a tool: `python src convert IN OUT` calls `main` of tools/convert.py or tools/convert/cli.py."""

import ast
import importlib
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before a tool loads torch

FOLDER = Path(__file__).resolve().parent / "tools"
TOOLS = {p.stem: p for p in FOLDER.glob("[!_]*.py")} | {p.parent.name: p for p in FOLDER.glob("*/cli.py")}


def summary(path: Path) -> str:
    """Return the first line of a tool's docstring without importing the tool."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main(argv: list[str]) -> int:
    """Run the tool argv[0] with the other arguments and return its exit status; 2 if there is no such tool."""
    if argv[:1] in (["-h"], ["--help"]):
        width = max(map(len, TOOLS))
        print("usage: python src TOOL …\n")
        print("\n".join(f"{name:{width}}  {summary(path)}" for name, path in sorted(TOOLS.items())))
        return 0
    if not argv or argv[0] not in TOOLS:
        problem = f"unknown tool {argv[0]!r}" if argv else "no tool named"
        print(f"error: {problem}; there are: {', '.join(sorted(TOOLS))}", file=sys.stderr)
        return 2
    module = TOOLS[argv[0]].relative_to(FOLDER.parent).with_suffix("")
    return importlib.import_module(".".join(module.parts)).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
