"""W&B's export of its table of runs: a row for each, with its state, configuration and last metrics."""

from collections.abc import Mapping
from pathlib import Path

from evidence.errors import WrongInput
from evidence.rows import Choice, is_higher_better, one_of


def read(rows_of: Mapping[Path, list[dict]], choice: Choice) -> tuple[list[dict], str]:
    """Return a single loss of each finished run, with W&B's `Group`."""
    every = [row | {"path": path} for path, rows in rows_of.items() for row in rows]
    finished = [row for row in every if row["State"] == "finished"]
    if not finished:
        raise WrongInput(f"{every[0]['path']}: has no run whose State is finished")

    # Without a choice, it is the only column of a loss.
    columns = [name for name in every[0] if name != "path"]
    losses = [name for name in columns if "loss" in name.lower()]
    names = columns if choice.metric or not losses else losses
    metric = one_of(every[0]["path"], "--metric", choice.metric, names)
    higher = is_higher_better(every[0]["path"], metric, choice)
    rows = []
    for row in finished:
        rows.append(
            {
                "path": row["path"],
                "run": row["Name"],
                "seed": row.get("seed"),
                "group": row.get("Group"),
                "loss": row.get(metric),
                "metric": metric,
                "higher_is_better": higher,
            }
        )
    return rows, f"W&B's export, {metric} of the {len(rows)} finished runs of {len(every)}"
