"""Delete the metrics that the previous run left for the stages that come later in this one.

DVC deletes the outputs of a stage before it runs the stage, but not those of later stages. These would keep the values
of the previous run, and `dvc exp show` would print them as results of the run that has just begun. In the copies of
`--temp` and the queue, the previous run is the committed one.
"""

from pathlib import Path

from lm.core.params import read_yaml
from tools.record.committed import changed_parameters
from tools.record.lock import Lock, paths_of, read_lock
from tools.record.paths import LOCK, PIPELINE

TRAINING = "train"


def delete_stale_metrics(stage: str) -> list[Path]:
    """Delete the metrics of later stages that the run will write again; return their paths.

    stage: the stage of dvc.yaml that begins. After training, the evaluation belongs to other weights. Any other stage
    may write the same bytes as before, so that later stages do not run. They do run if one of their parameters, or of
    the training before them, differs from dvc.lock.
    """
    stages = read_yaml(PIPELINE)["stages"]
    names = list(stages)  # each after those whose outputs it reads
    if stage not in names:
        return []
    recorded = read_lock().stages if LOCK.exists() else {}
    deleted = []
    for position in range(names.index(stage) + 1, len(names)):
        name = names[position]
        deciding = {name, TRAINING} if position > names.index(TRAINING) else {name}
        ran = {each: recorded[each] for each in deciding if each in recorded}
        is_stale = stage == TRAINING or len(ran) < len(deciding) or bool(changed_parameters(Lock(ran)))
        for metric in paths_of(stages[name], "metrics"):
            if is_stale and metric.exists():
                metric.unlink()
                deleted.append(metric)
    return deleted
