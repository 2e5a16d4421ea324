"""Tables in Markdown that read as well on a terminal."""


def table(header: list[str], rows: list[list]) -> list[str]:
    """Lines of a Markdown table whose columns stand under each other; the first to the left, others to the right."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| "
        + " | ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return [lines[0], rule, *lines[1:], ""]
