"""Check that the figures of the evaluation follow from its table of losses."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lm.core.files import read_json, read_parquet
from lm.evaluate.documents import metrics_of, summarize_file, summarize_sections, summarize_sources
from tools.common.parameters import differences
from tools.common.paths import DOCUMENT_LOSSES, EVAL_METRICS, EVALUATION_DETAILS

AGAIN = "run `dvc repro -f eval`"
FILES = (DOCUMENT_LOSSES, EVALUATION_DETAILS, EVAL_METRICS)


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
