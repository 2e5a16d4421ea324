"""Read files of any kind as runs: files → rows of a table → runs."""

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from evidence import table
from evidence.errors import WrongInput
from evidence.readers import lm_eval, trainer, wandb
from evidence.rows import Choice, Row, read_rows
from evidence.runs import Run

BELOW_A_FOLDER = ("trainer_state.json", "samples_*.jsonl")


def read_runs(paths: Iterable[Path], choice: Choice) -> list[Run]:
    """Return the runs of files, or of those that other programs wrote below folders; all of one kind."""
    files: list[Path] = []
    for path in paths:
        below = [each for name in BELOW_A_FOLDER for each in sorted(path.rglob(name))]
        if path.is_dir() and not below:
            raise WrongInput(f"{path}: has no {' or '.join(BELOW_A_FOLDER)} below it")
        files += below or [path]
    rows_of = {path: read_rows(path) for path in files}
    readers = {reader_of(rows[0]) for rows in rows_of.values()}
    if len(readers) > 1:
        raise WrongInput(f"{files[0]}: the other files are of another kind; give files of one kind")
    rows, kind = readers.pop().read(rows_of, choice)
    return table.make_runs(rows, kind)


def reader_of(row: Row) -> ModuleType:
    """Return the module that reads files whose first row has such keys."""
    if "log_history" in row:
        return trainer
    if "doc_id" in row:
        return lm_eval
    return wandb if {"Name", "State"} <= row.keys() else table
