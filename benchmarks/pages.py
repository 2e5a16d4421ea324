"""Write the figures that README.md, docs/ and data/README.md quote, from committed results alone: `make figures`.

    PYTHONPATH=src:benchmarks python benchmarks/pages.py [--check]

A page marks each place with `<!-- figures:NAME -->` and `<!-- end -->`, each on a line of its own. The lines between
them are what FRAGMENTS[NAME] returns. `--check` writes nothing and ends with 1 if a page is not up to date.
"""

import re
import sys
from collections.abc import Callable

import exact_order
import reference
from fragments import bits, runs
from fragments.text import table
from fragments.tutorial import TUTORIAL
from harness import ROOT
from lm.core.files import write_text

MARKED = re.compile(r"(^<!-- figures:([\w-]+) -->\n).*?(^<!-- end -->$)", re.M | re.S)


def parameters() -> str:
    """docs/reference.md: the parameters of each file."""
    head = "parameter | type | value | meaning"
    return "\n\n".join(f"## {file}\n\n{table(head, reference.parameters(file))}" for file in reference.FILES)


def commands() -> str:
    """docs/reference.md: a table for each goal, with what each command does."""
    lines = []
    for goal, commands_of_goal in reference.commands().items():
        rows = [(f"`{command.name}`", command.does) for command in commands_of_goal]
        lines += [f"## Commands: {goal}", "", table("command | does", rows), ""]
    return "\n".join(lines)


FRAGMENTS: dict[str, Callable[[], str]] = {
    # README.md
    "default-run": runs.default_run,
    "first-hour": runs.first_hour,
    "verdict": runs.verdict,
    "sample": runs.sample,
    "first-experiment": lambda: runs.experiment("first_experiment"),
    "seeds": runs.seeds,
    "graph": runs.graph,
    "judge-nights": runs.judge_nights,
    "judge": runs.judge,
    # docs/
    **TUTORIAL,
    "second-experiment": lambda: runs.experiment("second_experiment"),
    "detectable": runs.detectable,
    "default-data": runs.default_data,
    "default-evaluation": runs.default_evaluation,
    "rounding": bits.rounding,
    "exact": bits.exact,
    "processors": bits.processors,
    "gpu-models": bits.gpu_models,
    "gpu-compiled": bits.gpu_compiled,
    "parameters": parameters,
    "commands": commands,
    "order-rules": exact_order.order_rules,
    "order-constants": exact_order.order_constants,
    "order-code": exact_order.order_code,
    "order-inputs": exact_order.order_inputs,
    "order-vectors": exact_order.order_vectors,
}


def filled(page: str) -> str:
    """Return a page with every marked place filled in."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{FRAGMENTS[mark[2]]().strip()}\n\n{mark[3]}", page)


def main() -> int:
    """Fill in every page, or with --check say which are not up to date, and which fragments are on no page."""
    check = "--check" in sys.argv
    stale = 0
    marked = []
    for path in [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.read_text(encoding="utf-8")
        marked += [match[2] for match in MARKED.finditer(page)]
        if filled(page) != page:
            stale += 1
            print(f"{'run `make figures`' if check else 'wrote'}: {path.relative_to(ROOT)}")
            if not check:
                write_text(path, filled(page))
    if sorted(marked) != sorted(FRAGMENTS):
        sys.exit(f"error: the pages mark {sorted(marked)}, but the fragments are {sorted(FRAGMENTS)}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
