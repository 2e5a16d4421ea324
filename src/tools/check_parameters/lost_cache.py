"""Find the outputs that DVC makes again only because its cache was deleted."""

from pathlib import Path

from lm.core.params import read_yaml
from tools.common.lock import paths_of, read_lock
from tools.common.paths import LOCK, PIPELINE

OBJECTS = Path(".dvc/cache/files")


def outputs_of_lost_cache(stage: str) -> list[str]:
    """Return the outputs of the stages after `stage` that are here and in dvc.lock, if DVC's cache holds nothing.

    DVC deletes the outputs of a stage before it runs it. If dvc.lock has other outputs, or none are here, as in a fresh
    clone, nothing is lost.
    """
    if not LOCK.exists() or OBJECTS.exists() or keeps_cache_elsewhere():
        return []
    stages = read_yaml(PIPELINE)["stages"]
    recorded = read_lock().stages
    names = list(stages)
    later = names[names.index(stage) + 1 :] if stage in stages else []
    outputs = [path for name in later if name in recorded for path in paths_of(stages[name], "outs")]
    return [str(path) for path in outputs if path.exists()]


def keeps_cache_elsewhere() -> bool:
    """Return whether DVC's settings name another folder for the cache, as they do in copies of --temp and the queue."""
    from dvc.repo import Repo  # half a second, and rarely needed

    with Repo() as repo:
        return not Path(repo.cache.local.path).is_relative_to(OBJECTS.absolute())
