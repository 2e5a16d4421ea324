"""Compare runs on lm-eval's tasks, item by item: is one model better than another?

    python src compare_tasks items/a items/b
    python src compare_tasks items/a items/b items/c --document passage

A folder holds the items that `python src lm_eval --samples FOLDER` or lm-eval's own `--log_samples` wrote. The first
is the baseline. Items of one document depend on each other: --document names the field that says which document an
item is about, such as its passage; without it, or in a task without such a field, each item is a document of its own.
Of each task, the first of --metrics that it has is compared.
"""

import argparse
import json
import math
import re
from pathlib import Path

import numpy as np

from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.evaluate.intervals import Estimate
from tools.common.arguments import tool_parser
from tools.common.statistics import (
    LEAST_DIFFERENT,
    clustered_difference,
    detectable_difference,
    holm,
    p_text,
    size_correlation,
    sum_by_cluster,
    units_needed,
)
from tools.common.tables import table

SAMPLES = re.compile(r"samples_(.+?)(_\d{4}-\d\d-\d\dT[\d.-]+)?\.jsonl")  # lm-eval's names end in the time
METRICS = ("acc", "exact_match", "bits_per_byte")
COLUMNS = ["difference", "95 % interval", "p after Holm", "detectable", "documents needed"]
NOTE = """- difference: the run minus {}, item by item. More is better for accuracies, less for bits per byte.
  The interval covers the choice of documents, whose items count as one; it needs {} in which the runs differ.
- p after Holm: how often chance alone makes such a difference, corrected for the number of comparisons, {} (Holm
  1979). A difference is shown if it is at most 0.05.
- detectable: the smallest true difference that these documents would show in about 80 % of comparisons.
- documents needed: how many would show the measured one in as many. Neither is corrected for several comparisons."""
LEAST_NAMED = 10  # documents: fewer stand for few others, whatever the estimate


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("compare_tasks", __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="two or more folders of items")
    parser.add_argument("--document", metavar="FIELD", help="field of an item that names its document")
    parser.add_argument("--metrics", nargs="+", default=METRICS, help=f"metrics to compare ({' '.join(METRICS)})")
    args = parser.parse_args(argv)
    if len(set(args.folders)) < max(2, len(args.folders)):
        raise ParamsError(f"{args.folders[-1]}: name at least two folders, each once")
    return args


def read_tasks(folder: Path) -> dict[str, dict[tuple, dict]]:
    """Return task → item by its number and hashes; of a task's filters the first, of several files the last."""
    tasks = {}
    for path in sorted(folder.glob("**/samples_*.jsonl"), key=lambda path: path.name):
        samples = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        kept = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
        if (match := SAMPLES.fullmatch(path.name)) and kept:
            keys = [(sample["doc_id"], sample["doc_hash"], sample["prompt_hash"]) for sample in kept]
            tasks[match[1]] = dict(zip(keys, kept, strict=True))
    if not tasks:
        raise ParamsError(f"{folder}: has no items; name a folder that `python src lm_eval --samples` wrote")
    return tasks


def value_of(sample: dict, metric: str) -> tuple[float, float]:
    """Return the value of an item and its weight in the mean: 1, or for bits_per_byte its bytes."""
    if isinstance(sample[metric], list):  # lm-eval has the log-likelihood in nats, and the bytes
        return -sample[metric][0] / math.log(2), sample[metric][1]
    return float(sample[metric]), 1.0


def compare_items(
    name: str, a: dict[tuple, dict], b: dict[tuple, dict], metrics: list[str], document: str | None
) -> tuple[list[str], int, Estimate, float | None]:
    """Compare a task over the items that both runs have.

    Return the first cells of its row, the number of documents, B - A, and its correlation with the documents' sizes
    where that makes the interval too narrow.
    """
    common = [key for key in a if key in b]
    if not common:
        needed = "run both with the same task, its version and prompts"
        raise IntegrityError(f"{name}: the runs have no item with the same prompt in common; {needed}")
    sample = a[common[0]]
    metric = next((metric for metric in metrics if metric in sample), None)
    if metric is None:
        raise ParamsError(f"--metrics: {name} has {', '.join(sample['metrics'])}; choose one of them")
    values, weights = np.array([[value_of(run[key], metric) for key in common] for run in (a, b)]).transpose(2, 0, 1)
    documents = np.array([str(a[key]["doc"].get(document, key)) for key in common])
    means = [f"{mean:.4f}" for mean in values.sum(axis=1) / weights.sum(axis=1)]
    num_documents = len(set(documents))
    cells = [f"{name}, {metric}", f"{len(common):,}", f"{num_documents:,}", *means]
    difference = clustered_difference(values[1] - values[0], weights[0], documents)
    correlation = size_correlation(*sum_by_cluster(values[1] - values[0], weights[0], documents))
    return cells, num_documents, difference, correlation


def cells_of(found: Estimate, num_documents: int) -> list[str]:
    """Return the cells of COLUMNS."""
    if found.low is None:
        return [f"{found.value:+.4f}", "too few differ", "", "", ""]
    interval = f"{found.low:+.4f} to {found.high:+.4f}"
    needed = units_needed(found, num_documents, LEAST_DIFFERENT)
    count = "" if needed is None else f"fewer than {LEAST_NAMED}" if needed < LEAST_NAMED else f"{needed:,}"
    return [f"{found.value:+.4f}", interval, p_text(found), f"{detectable_difference(found):.4f}", count]


@exit_with_status
def main(argv: list[str]) -> None:
    """Print a table for each run that is compared with the first one."""
    args = parse(argv)
    first, *others = [read_tasks(folder) for folder in args.folders]
    fields = {name: next(iter(items.values()))["doc"] for name, items in first.items()}
    if args.document and not any(args.document in doc for doc in fields.values()):
        found = "; ".join(f"{name} has {', '.join(doc)}" for name, doc in fields.items())
        raise ParamsError(f"--document is {args.document}; it must be a field of a task; {found}")
    rows = []
    counts = []
    differences = []
    warnings = []
    for folder, tasks in zip(args.folders[1:], others, strict=True):
        for name in [name for name in first if name in tasks]:
            cells, count, difference, correlation = compare_items(
                name, first[name], tasks[name], args.metrics, args.document
            )
            rows.append((folder, cells))
            counts.append(count)
            differences.append(difference)
            if correlation is not None and difference.low is not None:
                size = f"the size of a document (correlation with log size {correlation:+.2f})"
                warnings.append(f"- {folder}, {name}: the difference depends on {size}, so its interval is too narrow.")
    if not rows:
        raise IntegrityError(f"{', '.join(map(str, args.folders))}: have no task in common; run the same tasks")
    ends = [cells_of(*each) for each in zip(holm(differences), counts, strict=True)]
    for folder in dict.fromkeys(folder for folder, _ in rows):
        names = ["task, metric", "items", "documents", str(args.folders[0]), str(folder), *COLUMNS]
        own = [[*cells, *end] for (run, cells), end in zip(rows, ends, strict=True) if run == folder]
        print("\n".join(table(names, own)))
    print("\n".join([*warnings, NOTE.format(args.folders[0], LEAST_DIFFERENT, len(rows))]))
