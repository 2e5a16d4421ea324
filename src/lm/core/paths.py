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
    """Return the root of the repository, even where DVC runs an experiment in a copy of it.

    DVC_ROOT names it. But if another DVC pipeline starts this one, the variable still names that pipeline's root.
    """
    root = Path(os.environ.get("DVC_ROOT", ".")).resolve()
    return root if root / ".dvc" / "tmp" in Path.cwd().parents else Path()
