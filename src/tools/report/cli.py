"""Write one page about the run in the workspace, finished or not: curves, metrics, samples, data, provenance.

    python src report
    python src report elsewhere/mine.html

The page is one file without scripts that needs no network. What is not made yet, or was made from other files
than those present, is left out, and a line says so. A second page beside it, report-reading.html, has excerpts of the
validation text in which each token has the colour of its loss.
"""

import re
from pathlib import Path

import jinja2

from lm.core.errors import command
from lm.core.files import write_text
from tools.common.arguments import tool_parser
from tools.report.reading import chance, label, reading
from tools.report.sections import gather
from tools.report.workspace import read_workspace


def readable(value) -> str:
    """Return a figure with few digits; other values as text."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)


def look(value) -> str:
    """Return the CSS class of a table cell."""
    if value is None or isinstance(value, int | float):
        return "number"
    return "long" if re.search(r"\S{24}", str(value)) else ""  # "long": a word of 24 letters, broken anywhere


def render(template: str, variables: dict) -> str:
    """Return a page; all text in it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"readable": readable, "look": look, "chance": chance, "label": label}
    return environment.get_template(template).render(variables)


@command
def main(argv: list[str]) -> None:
    """Write the pages."""
    parser = tool_parser("report", __doc__)
    parser.add_argument("out", type=Path, nargs="?", default="report.html", help="the page (report.html)")
    out = parser.parse_args(argv).out
    workspace = read_workspace()
    variables, excerpts = gather(workspace), reading(workspace)
    beside = out.with_name(f"{out.stem}-reading.html")
    pages = {out: render("page.html.j2", variables | {"reading": beside.name if excerpts else None})}
    if excerpts:
        pages[beside] = render("reading.html.j2", excerpts | {"title": variables["title"], "report": out.name})
    for path, page in pages.items():
        write_text(path, page)
        print(f"{path}: {path.stat().st_size:,} bytes; open it in a browser")
