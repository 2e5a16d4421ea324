"""Run a tool: `python src verify` calls `main` of src/tools/verify/cli.py."""

import ast
import difflib
import sys
import traceback
from pathlib import Path

import lm.core.environment  # noqa: F401 - before a tool loads torch

from lm.core.errors import EnvironmentFailure, exit_with_status
from lm.core.start import import_module

ROOT = Path(__file__).resolve().parent.parent

# Tools by goal, each with its module. The package `tools` is in src/, `extras` is at the root of the repository.
TOOLS_BY_GOAL = {
    "prepare a run": {
        "use": "tools.use",
        "check_parameters": "tools.check_parameters.cli",
        "check_idle": "tools.check_idle",
    },
    "look at a run": {
        "report": "extras.report.report",
        "generate": "tools.generate",
        "explain": "extras.trace.explain",
        "trace": "extras.trace.trace",
        "to_tensorboard": "extras.live.to_tensorboard",
    },
    "compare runs": {
        "compare": "tools.compare.cli",
        "judge": "tools.judge.cli",
        "judge_run": "tools.judge.run",
        "score_test": "tools.score_test",
        "lm_eval": "extras.lm_eval.lm_eval",
        "score_hf": "extras.score_hf.score_hf",
    },
    "check files and bits": {
        "verify": "tools.verify.cli",
        "compress": "extras.compress.compress",
        "decompress": "extras.compress.decompress",
    },
    "take the model elsewhere, or bring one": {
        "export_hf": "tools.export_hf.cli",
        "export_gguf": "extras.gguf.export_gguf",
    },
    "tokenize and convert for other programs": {
        "convert": "extras.formats.convert",
        "tokenize_cluster": "extras.tokenize_cluster.tokenize_cluster",
    },
}
TOOLS = {name: module for tools in TOOLS_BY_GOAL.values() for name, module in tools.items()}

BUG = 70  # status after a traceback; Python's status, 1, is an answer of `compare --require` and `judge`


def path_of(module: str) -> Path:
    """Return the file of a module of TOOLS."""
    folder = ROOT if module.startswith("extras.") else ROOT / "src"
    return folder.joinpath(*module.split(".")).with_suffix(".py")


def summary(module: str) -> str:
    """Return the first line of a tool's docstring. The tool is not imported: some take seconds to load."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    return docstring.partition("\n")[0]


def print_help() -> None:
    """Print the names of all tools by goal, each with its summary, and how to run the pipeline itself."""
    print("usage: python src TOOL …   (`dvc repro` or `dvc exp run` runs the pipeline; TOOL --help says more)")
    width = max(map(len, TOOLS))
    for goal, tools in TOOLS_BY_GOAL.items():
        print(f"\n{goal}:")
        for name, module in tools.items():
            print(f"  {name:{width}}  {summary(module)}")


def main(argv: list[str]) -> int:
    """Run the tool argv[0] with the other arguments; return its exit status, or 2 if no tool has this name."""
    if argv[:1] in (["-h"], ["--help"]):
        return exit_with_status(lambda _: print_help())([])
    if not argv or argv[0] not in TOOLS:
        problem = f"unknown tool {argv[0]!r}" if argv else "no tool named"
        nearest = difflib.get_close_matches(argv[0], TOOLS, n=1) if argv else []
        hint = f"did you mean {nearest[0]}? T" if nearest else "t"
        print(f"error: {problem}; {hint}here are: {', '.join(TOOLS)}", file=sys.stderr)
        return 2

    # Tools and their arguments name the project's files by paths from the root.
    asks_for_help = "-h" in argv or "--help" in argv
    if ROOT in Path.cwd().parents and not asks_for_help:
        print(f"error: {Path.cwd().relative_to(ROOT)} is a subfolder; run the command in {ROOT}", file=sys.stderr)
        return 2

    # Let tools, and processes that they start, import `extras`. The root goes last: a file such as queue.py in it would
    # otherwise hide a module of the standard library.
    sys.path.append(str(ROOT))
    try:
        tool = import_module(TOOLS[argv[0]])
    except EnvironmentFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    try:
        return tool.main(argv[1:])
    except Exception:
        traceback.print_exc()
        return BUG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
