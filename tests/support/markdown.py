"""Read the tables of a page of Markdown."""


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of each row of all tables, headers too."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
