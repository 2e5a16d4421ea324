"""Names of files that stages, the library and tools share; all other paths of the pipeline are in dvc.yaml."""

import os
from pathlib import Path

PARAMS = Path("params.yaml")
PRESETS = Path("presets.yaml")
SOURCES = Path("sources.yaml")
RUNTIME = Path("runtime.yaml")

PIPELINE = Path("dvc.yaml")
LOCK = Path("dvc.lock")

RUNS = Path(".runs")  # a folder for each fingerprint, at the repository's root


def repository_root() -> Path:
    """Return the root of the repository, also where DVC runs an experiment in a copy of it.

    DVC names it in DVC_ROOT, but keeps what another pipeline has set that starts this one.
    """
    root = Path(os.environ.get("DVC_ROOT", ".")).resolve()
    return root if root / ".dvc" / "tmp" in Path.cwd().parents else Path()
