"""HTML by small functions: text is escaped where it enters, and a page needs nothing but itself.

Every `str` that a function takes as content of a cell, a title or a paragraph is text; only `columns`,
`section` and `page` take markup, that of the other functions. No script, no font, no address of any other file.
"""

import base64
import re
from html import escape

NUMBER, LONG = r"[-+]?[\d,.]+(e[-+]?\d+)?|–", 24
STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: #1a1a1a; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid #d5d5d5; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; overflow-wrap: anywhere; }
.verdict { font-size: 1.2rem; margin: 0.4rem 0; }
p { overflow-wrap: anywhere; }
.note { color: #555; }
.columns { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1.6rem 2rem;
  margin: 1rem 0; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption b { display: block; }
.scroll { overflow-x: auto; margin: 0.6rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #e6e6e6;
  font-weight: normal; overflow-wrap: break-word; }
thead th { font-weight: 600; }
td.long { overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 0.7rem; margin: 0.3rem 0;
  font: 0.82rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
"""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph, of a kind that STYLE knows."""
    return f"<p{_kind(kind)}>{escape(text)}</p>\n"


def heading(text: str) -> str:
    """A title inside a section."""
    return f"<h3>{escape(text)}</h3>\n"


def preformatted(text: str) -> str:
    """Text as it stands, its long lines wrapped."""
    return f"<pre>{escape(text)}</pre>\n"


def figure(title: str, svg: bytes, caption: str) -> str:
    """A picture inside the page, its title above what one sentence says of it."""
    source = base64.b64encode(svg).decode("ascii")
    return (
        f'<figure><figcaption><b>{escape(title)}</b></figcaption><img alt="{escape(title)}" '
        f'src="data:image/svg+xml;base64,{source}"><figcaption>{escape(caption)}</figcaption></figure>\n'
    )


def columns(*parts: str) -> str:
    """Markup in one column, or in two where there is room; what is empty is left out."""
    return f'<div class="columns">\n{"".join(f"<div>{part}</div>" for part in parts if part)}</div>\n'


def table(rows: list[list[str]], head: list[str] | None = None) -> str:
    """Rows of cells; columns of numbers are set to the right, words of LONG letters are broken anywhere."""
    right = [all(re.fullmatch(NUMBER, row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = "".join(f"<tr>{_cells('td', row, right)}</tr>\n" for row in rows)
    top = f"<thead><tr>{_cells('th', head, right)}</tr></thead>\n" if head else ""
    return f'<div class="scroll"><table>\n{top}<tbody>\n{lines}</tbody></table></div>\n'


def _cells(tag: str, texts: list[str], right: list[bool]) -> str:
    """The cells of a row, each with what its look depends on."""
    kinds = [
        "number" if number else "long" if max(map(len, text.split()), default=0) >= LONG else ""
        for text, number in zip(texts, right, strict=True)
    ]
    return "".join(f"<{tag}{_kind(kind)}>{escape(text)}</{tag}>" for text, kind in zip(texts, kinds, strict=True))


def _kind(kind: str) -> str:
    """The attribute that names a look of STYLE."""
    return f' class="{kind}"' if kind else ""


def section(title: str, *parts: str) -> str:
    """A title above markup."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}</section>\n"


def page(title: str, *parts: str) -> str:
    """The whole document, of markup."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{''.join(parts)}</body>\n</html>\n"
    )
