"""Check that metrics follow from what they are made of: the evaluation from its losses, training from its curve."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lm.core.files import read_json, read_parquet
from lm.evaluate.documents import metrics_of, summarize_file, summarize_sections, summarize_sources
from tools.common.parameters import differences
from tools.common.paths import CURVE, DOCUMENT_LOSSES, EVAL_METRICS, EVALUATION_DETAILS, TRAIN_METRICS
from tools.common.runs import read_curve

AGAIN = "run `dvc repro -f eval`"
FILES_OF_EVALUATION = (DOCUMENT_LOSSES, EVALUATION_DETAILS, EVAL_METRICS)
FILES_OF_TRAINING = (CURVE, TRAIN_METRICS)


def read_losses() -> dict[str, np.ndarray]:
    """Return the columns (D,) of the table of losses."""
    table = read_parquet(DOCUMENT_LOSSES)
    return {name: table[name].to_numpy() for name in table.column_names}


def wrong_figure(losses: Mapping[str, np.ndarray], windows: Mapping[str, int]) -> tuple[Path, str] | None:
    """Return the file that does not follow from the losses, and why; None if details and metrics do.

    `windows`: what the details must have beside them.
    """
    details = read_json(EVALUATION_DETAILS)
    columns = dict(losses)
    wanted = {**windows, **summarize_file(columns), **summarize_sections(columns), **summarize_sources(columns)}
    for name, value in wanted.items():
        if details.get(name) != value:
            return EVALUATION_DETAILS, f"{name} is {details.get(name)}; by {DOCUMENT_LOSSES} it must be {value}"
    for name, must_be, found in differences(metrics_of(details), read_json(EVAL_METRICS)):
        return EVAL_METRICS, f"{name} is {found}; by {EVALUATION_DETAILS} it must be {must_be}"
    return None


def fault_of_training() -> str | None:
    """Return why the metrics of training do not follow from its curve, None if they do."""
    losses = [row["val_loss"] for row in read_curve(CURVE).values()]
    lowest = min(losses, key=float, default="missing")
    found = f"{read_json(TRAIN_METRICS)['val_loss']:.8g}"  # as `write_csv` writes it
    return None if found == lowest else f"val_loss is {found}; by {CURVE} it must be {lowest}"
