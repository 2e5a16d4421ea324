"""Read files as rows: CSV and TSV as spreadsheets leave them, parquet, JSON, and JSON lines."""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evidence.errors import WrongInput

DELIMITERS = (",", ";", "\t")

Row = Mapping[str, object]


class Choice(NamedTuple):
    """What files may leave open."""

    metric: str = ""  # if they have several
    filter: str = ""  # of lm-eval, likewise
    better: str = ""  # higher or lower, if it is another than usual


def read_rows(path: Path) -> list[dict]:
    """Return the rows of a file, at least one."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq  # only readers of such files need it

            rows = pq.read_table(path).to_pylist()
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes())
            rows = content if isinstance(content, list) else [content]
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        else:
            rows = read_csv(path)
    except UnicodeDecodeError:
        raise WrongInput(f"{path}: is not UTF-8; save it as CSV in UTF-8") from None
    except (OSError, EOFError, ValueError, csv.Error, ImportError) as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from None
    if not rows:
        raise WrongInput(f"{path}: has no rows")
    return rows


def read_csv(path: Path) -> list[dict]:
    """Return rows with a field for each name in the first line."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        first_line = file.readline()
        delimiter = max(DELIMITERS, key=first_line.count)
        if not first_line.startswith("sep="):  # of Excel
            file.seek(0)
        reader = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
        rows = [row for row in reader if any(row.values())]  # without the empty ones of a spreadsheet
        columns = list(reader.fieldnames or [])
    for name in columns:
        if name and columns.count(name) > 1:
            raise WrongInput(f"{path}: has two columns {name}; rename or delete one")
    for row_number, row in enumerate(rows, 1):
        if None in row:
            raise WrongInput(f"{path}: row {row_number} has more fields than the first line names")
        if list(row.values()) == columns:
            raise WrongInput(f"{path}: row {row_number} repeats the names of the columns; name each table of its own")
    return rows


def require(path: Path, row: Row, columns: Sequence[str]) -> None:
    """Raise WrongInput unless the rows of a table have these columns."""
    missing = [name for name in columns if name not in row]
    if missing:
        found = f"has the columns {', '.join(row)}, and no {', '.join(missing)}"
        raise WrongInput(f"{path}: {found}; it must have {', '.join(columns)} (docs/evidence.md lists other kinds)")


def one_of(where: object, option: str, said: str, names: Sequence[str]) -> str:
    """Return the name that an option says, or the only one; WrongInput if there is no such name, or several."""
    if said in names:
        return said
    if said or len(names) != 1:
        raise WrongInput(f"{where}: choose one with {option}: {', '.join(names) or 'there is none'}")
    return names[0]


def is_higher_better(where: object, metric: str, choice: Choice) -> bool:
    """Return what --better says, or False for a loss; WrongInput if nothing says it of another metric."""
    if not choice.better and "loss" not in metric.lower():
        raise WrongInput(f"{where}: {metric} is no loss by its name; add --better higher or --better lower")
    return choice.better == "higher"
