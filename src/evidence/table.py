"""Read tables of losses or scores: CSV, TSV or parquet files with a row for each run and document.

| column | |
|---|---|
| run | name of the run |
| document | name or number of the document, or of the item |
| nats, utf8_bytes | the loss of the document, summed over its tokens; the bytes of its text, the same for all runs |
| score, higher_is_better | instead of these: the score of an item, such as 1 for a right answer; true or false |
| seed | optional, a whole number: runs of one name with several seeds are one group |
| group | optional: the configuration of a run, if runs of one configuration have several names |
| source | optional: what a document comes from, such as a language or a task |
"""

import collections
import csv
import dataclasses
import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from evidence.errors import WrongInput
from evidence.runs import BITS_PER_BYTE, Measure, Run

LOSSES = ("run", "document", "nats", "utf8_bytes")
SCORES = ("run", "document", "score", "higher_is_better")
DELIMITERS = (",", ";", "\t")
LEAST_BITS_PER_BYTE = 0.05  # with the mean over the tokens in place of their sum, a document has less

Row = Mapping[str, object]


def read_tables(paths: Iterable[Path]) -> list[Run]:
    """Return the runs of tables in the order of their first rows; all must have the same documents."""
    rows_of: dict[tuple[str, str], list[Row]] = {}
    where: dict[tuple[str, str], Path] = {}
    for path in paths:
        for row in read_rows(path):
            key = (str(row["run"]), text_of(row.get("seed")))
            rows_of.setdefault(key, []).append(row)
            if where.setdefault(key, path) != path:
                raise WrongInput(f"{path}: run {name_of(*key)} is also in {where[key]}; give each run another name")

    # Number the documents as the first run has them.
    first_key, first_rows = next(iter(rows_of.items()))
    position = {name: i for i, name in enumerate(dict.fromkeys(str(row["document"]) for row in first_rows))}
    num_runs = {run: sum(key[0] == run for key in rows_of) for run, _ in rows_of}
    runs = []
    for (run, seed), rows in rows_of.items():
        name = name_of(run, seed) if num_runs[run] > 1 else run
        runs.append(make_run(f"{where[run, seed]}: run {name_of(run, seed)}", name, rows, position))
    for other in runs[1:]:
        reject_other_documents(where[first_key], runs[0], other)
    return runs


def name_of(run: str, seed: str) -> str:
    return f"{run}-{seed}" if seed else run


def text_of(value: object) -> str:
    """Return a cell as text, "" if it is empty."""
    return "" if value is None or value != value else str(value)


def read_losses(path: Path, seed: int | None = None) -> Run:
    """Return the losses of the run that a table is of, which needs no column `run`; its documents in order of name."""
    rows = read_rows(path, LOSSES[1:])
    names = sorted({str(row["document"]) for row in rows})
    position = {name: i for i, name in enumerate(names)}
    run = make_run(str(path), path.stem, rows, position)
    return dataclasses.replace(run, seed=seed, configuration="", label="")


def read_rows(path: Path, wanted: Sequence[str] = ()) -> list[Row]:
    """Return the rows of a table; WrongInput unless it has rows and the columns `wanted`, of losses or of scores."""
    rows: list[Row]
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq  # only readers of such files need it

            table = pq.read_table(path)
            columns = table.column_names
            rows = table.to_pylist()
        else:
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
                first_line = file.readline()
                delimiter = max(DELIMITERS, key=first_line.count)
                if first_line.startswith("sep="):  # of Excel
                    delimiter = first_line[4]
                else:
                    file.seek(0)
                reader = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
                rows = list(reader)
                columns = list(reader.fieldnames or [])
    except UnicodeDecodeError:
        raise WrongInput(f"{path}: is not UTF-8; save it as CSV in UTF-8") from None
    except (OSError, EOFError, ValueError, csv.Error, ImportError) as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from None
    if not wanted:
        wanted = LOSSES if "nats" in columns or "score" not in columns else SCORES
    missing = [name for name in wanted if name not in columns]
    if missing:
        found = f"has the columns {', '.join(columns)}, and no {', '.join(missing)}"
        raise WrongInput(f"{path}: {found}; it must have {', '.join(wanted)}")
    if not rows:
        raise WrongInput(f"{path}: has no rows")
    for row_number, row in enumerate(rows, 1):
        if None in row:
            raise WrongInput(f"{path}: row {row_number} has more fields than the first line names")
        if list(row.values()) == columns:
            raise WrongInput(f"{path}: row {row_number} repeats the names of the columns; name each table of its own")
        if not any(row.values()):
            raise WrongInput(f"{path}: row {row_number} is empty; delete it")
    return rows


def make_run(where: str, name: str, rows: list[Row], position: Mapping[str, int]) -> Run:
    """Return the run of these rows, with its documents in the order of `position`."""
    is_of_losses = "nats" in rows[0]
    at = positions_of(where, rows, position, may_repeat=not is_of_losses)
    sources = None
    if "source" in rows[0]:
        sources = np.empty(len(position), object)
        sources[at] = [text_of(row["source"]) for row in rows]
    group = one_of(where, "group", rows) or text_of(rows[0].get("run"))
    has_seed = one_of(where, "seed", rows)

    # Add the losses, or the scores of the items, of each document.
    if is_of_losses:
        nats = np.bincount(at, [number(where, row, "nats") for row in rows])
        values = nats / math.log(2)
        sizes = np.bincount(at, [whole_number(where, row, "utf8_bytes") for row in rows]).astype(np.int64)
        measure = BITS_PER_BYTE
        reject_no_losses(where, values, sizes)
    else:
        values = np.bincount(at, [number(where, row, "score") for row in rows])
        sizes = np.bincount(at)
        is_better = one_of(where, "higher_is_better", rows).lower()
        if is_better not in ("true", "false"):
            raise WrongInput(f"{where}: higher_is_better is {is_better!r}; it must be true or false")
        measure = Measure("in score", "score", is_better == "true")
    return Run(
        name=name,
        seed=whole_number(where, rows[0], "seed") if has_seed else None,
        values=values,
        sizes=sizes,
        configuration=group,
        label=group,
        measure=measure,
        documents=list(position),
        sources=sources,
    )


def positions_of(where: str, rows: list[Row], position: Mapping[str, int], may_repeat: bool) -> list[int]:
    """Return the position of the document of each row; WrongInput unless these are the documents of `position`."""
    documents = [str(row["document"]) for row in rows]
    counts = collections.Counter(documents)
    for document in [*counts, *position]:
        if document not in position:
            raise WrongInput(f"{where}: has document {document}, which the first run lacks; score the same documents")
        if document not in counts:
            raise WrongInput(f"{where}: lacks document {document}; score the same documents in all runs")
        if counts[document] > 1 and not may_repeat:
            remedy = "a run has one row for it, and several seeds of a run need a column seed"
            raise WrongInput(f"{where}: has document {document} twice; {remedy}")
    return [position[document] for document in documents]


def reject_no_losses(where: str, bits: np.ndarray, utf8_bytes: np.ndarray) -> None:
    """Raise WrongInput if these cannot be the sums of the losses of texts."""
    if not utf8_bytes.any():
        raise WrongInput(f"{where}: utf8_bytes are all 0; they must be the bytes of the texts")
    bits_per_byte = bits.sum() / utf8_bytes.sum()
    if bits_per_byte < LEAST_BITS_PER_BYTE:
        found = f"has {bits_per_byte:.4f} bits per byte, too few for text"
        raise WrongInput(f"{where}: {found}; nats must be the sum of the losses of a document's tokens, not their mean")


def one_of(where: str, column: str, rows: list[Row]) -> str:
    """Return the value that all rows of a run have in a column, "" without this column."""
    values = list(dict.fromkeys(text_of(row.get(column)) for row in rows))
    if len(values) > 1:
        raise WrongInput(f"{where}: {column} is {values[0]!r} and {values[1]!r}; a run has one")
    return values[0]


def number(where: str, row: Row, column: str) -> float:
    """Return a finite number of a row."""
    try:
        found = float(str(row[column]))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        wrong = f"{column} of document {row['document']} is {row[column]}"
        raise WrongInput(f"{where}: {wrong}; it must be a finite number, with a decimal point")
    return found


def whole_number(where: str, row: Row, column: str) -> int:
    """Return a whole number of a row, 0 or more."""
    found = number(where, row, column)
    if found != int(found) or found < 0:
        wrong = f"{column} of document {row['document']} is {row[column]}"
        raise WrongInput(f"{where}: {wrong}; it must be a whole number, 0 or more")
    return int(found)


def reject_other_documents(path: Path, first: Run, other: Run) -> None:
    """Raise WrongInput if two runs are measured differently, or count a document differently."""
    if first.measure != other.measure:
        raise WrongInput(f"{path}: {first.name} and {other.name} have other kinds of scores; compare equal ones")
    (different,) = np.nonzero(first.sizes != other.sizes)
    if len(different):
        i = int(different[0])
        unit = "bytes" if first.measure == BITS_PER_BYTE else "items"
        sizes = f"{first.sizes[i]} {unit} in run {first.name} and {other.sizes[i]} in run {other.name}"
        raise WrongInput(f"{path}: document {first.name_of_document(i)} has {sizes}; score the same text in all runs")
