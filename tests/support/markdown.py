"""Read the tables of a page of Markdown."""


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of all tables, headers too."""
    rows = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = line[1:-1].split("|")
            rows.append([cell.strip() for cell in cells])
    return rows
