"""Wall-clock times of a run. They belong to the machine that computed it, so no output has them."""

from lm.core.files import read_json
from lm.core.paths import RUNS, repository_root


def read_timing(record: dict) -> dict:
    """Return timing.json of the run of a model.json: {} if it was computed on another machine or is deleted."""
    path = repository_root() / RUNS / record.get("fingerprint", "unknown") / "timing.json"
    return read_json(path) if path.exists() else {}
