"""Check that metrics follow from what they are made of: the evaluation from its losses, training from its curve."""

import numpy as np

from lm.core.files import read_json, read_parquet
from lm.evaluate.documents import metrics_of, summarize_file, summarize_sections, summarize_sources
from tools.common.parameters import differences
from tools.common.paths import CURVE, DOCUMENT_LOSSES, EVAL_METRICS, EVALUATION_DETAILS, TRAIN_METRICS

AGAIN = "run `dvc repro -f eval`"
FILES_OF_EVALUATION = (DOCUMENT_LOSSES, EVALUATION_DETAILS, EVAL_METRICS)
FILES_OF_TRAINING = (CURVE, TRAIN_METRICS)


def read_losses() -> dict[str, np.ndarray]:
    """Return the columns (D,) of the table of losses."""
    table = read_parquet(DOCUMENT_LOSSES)
    return {name: table[name].to_numpy() for name in table.column_names}


def fault_of_details(losses: dict[str, np.ndarray], windows: dict[str, int]) -> str | None:
    """Return why the details of the evaluation do not follow from its losses, None if they do.

    `windows`: what the details must have beside them.
    """
    details = read_json(EVALUATION_DETAILS)
    wanted = windows | summarize_file(losses) | summarize_sections(losses) | summarize_sources(losses)
    for name, value in wanted.items():
        if details.get(name) != value:
            return f"{name} is {details.get(name)}; by {DOCUMENT_LOSSES} it must be {value}"
    return None


def fault_of_metrics() -> str | None:
    """Return why the metrics of the evaluation do not follow from its details, None if they do."""
    wanted = metrics_of(read_json(EVALUATION_DETAILS))
    for name, must_be, found in differences(wanted, read_json(EVAL_METRICS)):
        return f"{name} is {found}; by {EVALUATION_DETAILS} it must be {must_be}"
    return None


def fault_of_training() -> str | None:
    """Return why the metrics of training do not follow from its curve, None if they do."""
    from tools.common.run import read_curve  # DVC takes a second to import

    losses = [row["val_loss"] for row in read_curve(CURVE).values()]
    lowest = min(losses, key=float, default="missing")
    found = f"{read_json(TRAIN_METRICS)['val_loss']:.8g}"  # as `write_csv` writes it
    return None if found == lowest else f"val_loss is {found}; by {CURVE} it must be {lowest}"
