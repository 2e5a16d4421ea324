"""Wall-clock times of a run. They belong to the machine that computed it, so no output has them."""

import os
from pathlib import Path

from lm.core.files import read_json


def read_timing(record: dict) -> dict:
    """Return timing.json of the run of a model.json: {} if it was computed on another machine or is deleted."""
    path = Path(os.environ.get("DVC_ROOT", "."), ".runs", record.get("fingerprint", "unknown"), "timing.json")
    return read_json(path) if path.exists() else {}
