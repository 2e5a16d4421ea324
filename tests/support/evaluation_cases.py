"""Edits of the evaluation in the working directory, as a forger makes them."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm.core.files import PARQUET, read_json, write_json
from lm.evaluate.documents import metrics_of, summarize_file, summarize_sections
from tools.record.paths import DOCUMENT_LOSSES, EVAL_METRICS, EVALUATION_DETAILS


def read_losses() -> dict[str, np.ndarray]:
    """Return the columns of the losses by document."""
    table = pq.read_table(DOCUMENT_LOSSES)
    return {name: table[name].to_numpy() for name in table.column_names}


def forge_evaluation(change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the nats (D,) of all documents, and every figure that follows from them."""
    columns = read_losses()
    for name in ("nats", "model_selection_nats"):
        columns[name] = change(columns[name])
    details = read_json(EVALUATION_DETAILS) | summarize_file(columns) | summarize_sections(columns)

    # The files may be hard links into DVC's cache.
    for path in (DOCUMENT_LOSSES, EVALUATION_DETAILS, EVAL_METRICS):
        path.unlink()
    pq.write_table(pa.table(columns), DOCUMENT_LOSSES, **PARQUET)
    write_json(EVALUATION_DETAILS, details)
    write_json(EVAL_METRICS, metrics_of(details))
