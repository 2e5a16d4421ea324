"""samples_*.jsonl of lm-evaluation-harness (--log_samples): what a model reached on each item of each task."""

import re
from collections.abc import Mapping
from pathlib import Path

from evidence.rows import Choice, one_of

DATE = re.compile(r"_\d{4}-\d\d-\d\dT.*")
LOSS = "bits_per_byte"  # a pair: the log-likelihood of a text, and its bytes


def read(rows_of: Mapping[Path, list[dict]], choice: Choice) -> tuple[list[dict], str]:
    """Return the items of the tasks that have a metric. A run is a folder."""
    # Of each task, the newest file counts: names end in a date, and come in this order.
    newest: dict[tuple[Path, str], Path] = {}
    for path in sorted(rows_of):
        newest[path.parent, DATE.sub("", path.stem.removeprefix("samples_"))] = path

    # A metric is a number, or the pair LOSS.
    names = {}
    for path in newest.values():
        for item in rows_of[path]:
            names |= {name: None for name in item if isinstance(item[name], int | float) or name == LOSS}
    metric = one_of(path, "--metric", choice.metric, [name for name in names if name != "doc_id"])
    rows = []
    for (folder, task), path in newest.items():
        # An item is logged once for each filter.
        items = [item for item in rows_of[path] if metric in item]
        filters = list(dict.fromkeys(item.get("filter", "") for item in items))
        if len(filters) > 1:
            kept = one_of(path, "--filter", choice.filter, filters)
            items = [item for item in items if item["filter"] == kept]

        for item in items:
            row = {"path": folder, "run": folder.as_posix(), "document": f"{task}/{item['doc_id']}", "source": task}
            if metric == LOSS:
                reached = {"nats": -item[metric][0], "utf8_bytes": item[metric][1]}
            else:
                reached = {"score": item[metric], "metric": metric, "higher_is_better": choice.better != "lower"}
            rows.append(row | reached)
    tasks = dict.fromkeys(row["source"] for row in rows)
    return rows, f"samples of lm-eval, {metric} of {', '.join(tasks)}"
