"""Run a tool: `verify` calls `main` of src/tools/verify/cli.py, `convert` that of extras/formats/convert.py."""

import ast
import importlib
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before a tool loads torch

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {p.stem: p for p in ROOT.glob("src/tools/[!_]*.py")}
TOOLS |= {p.parent.name: p for p in ROOT.glob("src/tools/*/cli.py")}
TOOLS |= {p.stem: p for p in ROOT.glob("extras/*/*.py") if "\ndef main(" in p.read_text(encoding="utf-8")}


def summary(path: Path) -> str:
    """Return the first line of a tool's docstring without importing the tool."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def main(argv: list[str]) -> int:
    """Run the tool argv[0] with the other arguments; return its exit status, or 2 if no tool has this name."""
    if argv[:1] in (["-h"], ["--help"]):
        width = max(map(len, TOOLS))
        print("usage: python src TOOL …\n")
        print("\n".join(f"{name:{width}}  {summary(path)}" for name, path in sorted(TOOLS.items())))
        return 0
    if not argv or argv[0] not in TOOLS:
        problem = f"unknown tool {argv[0]!r}" if argv else "no tool named"
        print(f"error: {problem}; there are: {', '.join(sorted(TOOLS))}", file=sys.stderr)
        return 2
    if ROOT in Path.cwd().parents and not set(argv) & {"-h", "--help"}:
        # Tools read and write the project's files by their paths from the root, and so do the paths of their arguments.
        print(f"error: {Path.cwd().relative_to(ROOT)} is a subfolder; run the command in {ROOT}", file=sys.stderr)
        return 2
    sys.path.append(str(ROOT))  # for `import extras.…`
    module = TOOLS[argv[0]].relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(module).removeprefix("src.")).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
