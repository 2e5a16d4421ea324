"""Results as the text of a page: tables, paragraphs, blocks, and the words for a machine."""

import json
import textwrap

from harness import RESULTS

ESCAPED = "\\|"


def read(name: str) -> dict:
    """Read benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, rows: list[tuple]) -> str:
    """Return a Markdown table; `head` has its columns, divided by `|`."""
    num_columns = head.count("|") + 1
    lines = [f"| {head} |", f"|{'---|' * num_columns}"]
    for row in rows:
        cells = [str(cell).replace("|", ESCAPED) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def paragraph(text: str) -> str:
    """Return a text in lines of 120 characters."""
    return textwrap.fill(text, 120, break_on_hyphens=False)


def output(text: str) -> str:
    """Return what a command printed as a block."""
    lines = [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]
    return "\n".join(["```text output", *lines, "```"])


def machine(name: str) -> str:
    """Return the machine of a benchmark: processor, cores and memory."""
    found = read(name)["hardware"]
    return f"{found['cores']} cores of an {found['processor']}, {found['memory_gib']:.0f} GiB of memory"


def threads(run: dict) -> str:
    """Return the number of threads in words."""
    return f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"


def computed(run: dict) -> str:
    """Return what a recorded run was computed on: `exact float32 on 2 threads, AVX2`."""
    last = run["computed_on"]
    numerics = run["segments"][-1].get("numerics", "fast")
    code = last.get("instruction_set") or last["device"]
    words = f"{last['dtype']} on {threads(last)}, {code}"
    return f"exact {words}" if numerics == "exact" else words
