"""Make runs of tables, with a row for each run and document, or for each run.

| column | |
|---|---|
| run | name of the run |
| document | name or number of the document, or of the item |
| nats, utf8_bytes | the loss of the document, summed over its tokens; the bytes of its text, the same for all runs |
| score, higher_is_better | instead of these: the score of an item, such as 1 for a right answer; true or false |
| loss | instead of these: the loss of the document without its bytes, or without a document the single loss of a run |
| seed | optional, a whole number: runs of one name with several seeds are one group |
| group | optional: the configuration of a run, if runs of one configuration have several names |
| source | optional: what a document comes from, such as a language or a task |
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from evidence.errors import WrongInput
from evidence.rows import Choice, Row, read_rows, require
from evidence.runs import BITS_PER_BYTE, Measure, Run

# The column that is compared → the columns of such a table.
COLUMNS = {
    "nats": ("run", "document", "nats", "utf8_bytes"),
    "score": ("run", "document", "score", "higher_is_better"),
    "loss": ("run", "loss"),
}
LEAST_BITS_PER_BYTE = 0.05  # with the mean over the tokens in place of their sum, a document has less
SEED_AT_END = r"(.+?)[-_.]?seed[-_=]?(\d+)"
SEED_OR_NUMBER_AT_END = r"(.+?)(?:[-_.]?seed[-_=]?|-)(\d+)"


def read(rows_of: Mapping[Path, list[dict]], choice: Choice) -> tuple[list[dict], str]:
    """Return the rows of all tables with their paths, and what is compared."""
    for path, own in rows_of.items():
        require(path, own[0], COLUMNS[compared_column(own[0])])
    better = {"higher_is_better": choice.better == "higher"} if choice.better else {}
    rows = [row | {"path": path} | better for path, own in rows_of.items() for row in own]
    return rows, f"a table with the column {compared_column(rows[0])}"


def compared_column(row: Row) -> str:
    return next((name for name in COLUMNS if name in row), "nats")


def make_runs(rows: Iterable[Row], kind: str) -> list[Run]:
    """Return the runs in the order of their first rows; all must have the same documents."""
    rows_of: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        rows_of.setdefault((str(row["run"]), text_of(row.get("seed"))), []).append(row)
    runs: list[Run] = []
    for (run, seed), own in rows_of.items():
        name = f"{run}-{seed}" if seed else run
        path, *others = dict.fromkeys(row["path"] for row in own)
        if others:
            raise WrongInput(f"{others[0]}: run {name} is also in {path}; give each run another name")
        made = make_run(f"{path}: run {name}", own, runs[0].documents if runs else ())
        runs.append(replace(made, name=name, kind=kind))
        reject_other_documents(path, runs[0], runs[-1])
    return runs


def read_run(path: Path, seed: int | None = None, compared: str = "nats") -> Run:
    """Return the run that a table is of, which needs no column `run`; its documents in order of name."""
    rows = read_rows(path)
    require(path, rows[0], COLUMNS[compared][1:])
    rows.sort(key=lambda row: str(row["document"]))
    return replace(make_run(str(path), rows, ()), name=path.stem, seed=seed, configuration="", label="")


def make_run(where: str, rows: Sequence[Row], documents: Sequence[str]) -> Run:
    """Return the run of these rows; its documents must be those that are given, in this order, unless none are."""
    # Add the losses, or the scores of the items, of each document.
    first = rows[0]
    column = compared_column(first)
    values: dict[str, float] = defaultdict(float)
    sizes: dict[str, int] = defaultdict(int)
    source_of = {}
    for row in rows:
        document = str(row.get("document", ""))
        if document in values and column != "score":
            raise WrongInput(
                f"{where}: has document {document} twice; "
                "a run has one row for it, and several seeds of a run need a column seed"
            )
        values[document] += number(where, row, column)
        sizes[document] += int(number(where, row, "utf8_bytes", is_whole=True)) if column == "nats" else 1
        source_of[document] = text_of(row.get("source"))

    documents = documents or list(values)
    if different := values.keys() ^ set(documents):
        raise WrongInput(f"{where}: document {min(different)} is not in all runs; score the same documents")
    sums = np.array([values[name] for name in documents])
    counts = np.array([sizes[name] for name in documents])
    sources = np.array([source_of[name] for name in documents], object)

    directions = {str(row.get("higher_is_better", False)).lower() for row in rows}
    if directions not in ({"true"}, {"false"}):
        raise WrongInput(f"{where}: higher_is_better must be true or false, the same for all of its rows")
    measure = Measure(text_of(first.get("metric")) or column, column, directions == {"true"})
    if column == "nats":
        sums /= math.log(2)
        measure = BITS_PER_BYTE
        if sums.sum() < LEAST_BITS_PER_BYTE * counts.sum() or not counts.any():
            remedy = "nats must be the sum over a document's tokens, not their mean, and utf8_bytes those of its text"
            raise WrongInput(f"{where}: has too few bits per byte for text; {remedy}")

    # Without a group, the end of the name gives it, and the seed; a column with the same seed changes nothing.
    group = text_of(first.get("group"))
    label = group or text_of(first.get("run"))
    seed = int(number(where, first, "seed", is_whole=True)) if text_of(first.get("seed")) else None
    pattern = SEED_OR_NUMBER_AT_END if column == "loss" and seed is None else SEED_AT_END
    match = re.fullmatch(pattern, label)
    if match and not group and seed in (None, int(match[2])):
        label, seed = match[1], int(match[2])
    return Run(
        name="",
        seed=seed,
        values=sums,
        sizes=counts,
        configuration=label,
        label=label,
        measure=measure,
        documents=documents,
        sources=sources if any(sources) else None,
    )


# Cells.


def text_of(value: object) -> str:
    """Return a cell as text, "" if it is empty."""
    return "" if value is None or value != value else str(value)


def number(where: str, row: Row, column: str, is_whole: bool = False) -> float:
    """Return a finite number of a row, or one that counts."""
    try:
        found = float(str(row[column]))
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or (is_whole and (found % 1 or found < 0)):
        wanted = "whole number, 0 or more" if is_whole else "finite number, with a decimal point"
        of = f" of document {row['document']}" if "document" in row else ""
        raise WrongInput(f"{where}: {column}{of} is {row[column] or 'empty'}; it must be a {wanted}")
    return found


def reject_other_documents(path: object, first: Run, other: Run) -> None:
    """Raise WrongInput if two runs are measured differently, or count a document differently."""
    if first.measure != other.measure:
        found = f"{other.name} has {other.measure.unit}, and {first.name} {first.measure.unit}"
        raise WrongInput(f"{path}: {found}; compare equal measures")
    for i, (size, size_of_first) in enumerate(zip(other.sizes, first.sizes, strict=True)):
        if size != size_of_first:
            sizes = f"{size} bytes or items in run {other.name} and {size_of_first} in run {first.name}"
            raise WrongInput(
                f"{path}: document {first.name_of_document(i)} has {sizes}; score the same text in all runs"
            )
