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
from typing import NamedTuple

import numpy as np
from evidence.statistics import (
    LEAST_DIFFERENT,
    clustered_difference,
    detectable_difference,
    holm,
    p_text,
    size_correlation,
    sum_by_cluster,
    units_needed,
)

from evidence.intervals import Estimate
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from tools.common.arguments import tool_parser
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
        match = SAMPLES.fullmatch(path.name)
        lines = path.read_text(encoding="utf-8").split("\n")
        samples = [json.loads(line) for line in lines if line]
        if not match or not samples:
            continue
        task = match[1]
        tasks[task] = {}
        for sample in samples:
            if sample["filter"] == samples[0]["filter"]:
                key = (sample["doc_id"], sample["doc_hash"], sample["prompt_hash"])
                tasks[task][key] = sample
    if not tasks:
        raise ParamsError(f"{folder}: has no items; name a folder that `python src lm_eval --samples` wrote")
    return tasks


def value_of(sample: dict, metric: str) -> tuple[float, float]:
    """Return the value of an item and its weight in the mean: 1, or for bits_per_byte its bytes."""
    if isinstance(sample[metric], list):
        log_likelihood_nats, num_bytes = sample[metric]
        return -log_likelihood_nats / math.log(2), num_bytes
    return float(sample[metric]), 1.0


class Comparison(NamedTuple):
    """A task of two runs A and B over the items that both have."""

    task: str
    metric: str
    num_items: int
    num_documents: int
    mean_a: float
    mean_b: float
    difference: Estimate  # B - A
    size_correlation: float | None  # with the documents' sizes, where that makes the interval too narrow


def compare_items(
    name: str, a: dict[tuple, dict], b: dict[tuple, dict], metrics: list[str], document: str | None
) -> Comparison:
    """Compare a task by the first of the metrics that it has. Raise IntegrityError if no item is in both runs."""
    common = [key for key in a if key in b]
    if not common:
        needed = "run both with the same task, its version and prompts"
        raise IntegrityError(f"{name}: the runs have no item with the same prompt in common; {needed}")
    sample = a[common[0]]
    metric = next((metric for metric in metrics if metric in sample), None)
    if metric is None:
        raise ParamsError(f"--metrics: {name} has {', '.join(sample['metrics'])}; choose one of them")
    values_a, weights_a = np.array([value_of(a[key], metric) for key in common]).T
    values_b, weights_b = np.array([value_of(b[key], metric) for key in common]).T
    documents = np.array([str(a[key]["doc"].get(document, key)) for key in common])
    differences = values_b - values_a
    sums, sizes = sum_by_cluster(differences, weights_a, documents)
    return Comparison(
        task=name,
        metric=metric,
        num_items=len(common),
        num_documents=len(set(documents)),
        mean_a=values_a.sum() / weights_a.sum(),
        mean_b=values_b.sum() / weights_b.sum(),
        difference=clustered_difference(differences, weights_a, documents),
        size_correlation=size_correlation(sums, sizes),
    )


def row_of(found: Comparison, corrected: Estimate) -> list[str]:
    """Return the cells of a comparison; `corrected` is its difference with p after Holm."""
    first_cells = [
        f"{found.task}, {found.metric}",
        f"{found.num_items:,}",
        f"{found.num_documents:,}",
        f"{found.mean_a:.4f}",
        f"{found.mean_b:.4f}",
        f"{corrected.value:+.4f}",
    ]
    if corrected.low is None:
        return [*first_cells, "too few differ", "", "", ""]
    interval = f"{corrected.low:+.4f} to {corrected.high:+.4f}"
    detectable = f"{detectable_difference(corrected):.4f}"
    needed = units_needed(corrected, found.num_documents, LEAST_DIFFERENT, num_means=1)
    return [*first_cells, interval, p_text(corrected), detectable, count_text(needed)]


def count_text(num_documents: int | None) -> str:
    """Return the text of a number of documents that are needed."""
    if num_documents is None:
        return ""
    if num_documents < LEAST_NAMED:
        return f"fewer than {LEAST_NAMED}"
    return f"{num_documents:,}"


def check_document_field(field: str, tasks: dict[str, dict[tuple, dict]]) -> None:
    """Raise ParamsError if the items of no task have the field."""
    fields = {name: list(next(iter(items.values()))["doc"]) for name, items in tasks.items()}
    if not any(field in names for names in fields.values()):
        found = "; ".join(f"{task} has {', '.join(names)}" for task, names in fields.items())
        raise ParamsError(f"--document is {field}; it must be a field of a task; {found}")


@exit_with_status
def main(argv: list[str]) -> None:
    """Print a table for each run that is compared with the first one."""
    args = parse(argv)
    baseline, *others = args.folders
    tasks_of = {folder: read_tasks(folder) for folder in args.folders}
    if args.document:
        check_document_field(args.document, tasks_of[baseline])

    # Compare each task of each run with the baseline's.
    compared = []  # folder and comparison
    for folder in others:
        for task, items in tasks_of[baseline].items():
            if task in tasks_of[folder]:
                found = compare_items(task, items, tasks_of[folder][task], args.metrics, args.document)
                compared.append((folder, found))
    if not compared:
        raise IntegrityError(f"{', '.join(map(str, args.folders))}: have no task in common; run the same tasks")

    # Print a table for each run; p is corrected for all comparisons together.
    corrected = holm([found.difference for _, found in compared])
    rows = {folder: [] for folder, _ in compared}
    for (folder, found), difference in zip(compared, corrected, strict=True):
        rows[folder].append(row_of(found, difference))
    for folder, own in rows.items():
        header = ["task, metric", "items", "documents", str(baseline), str(folder), *COLUMNS]
        print("\n".join(table(header, own)))

    # Warn about intervals that are too narrow, and explain the columns.
    for folder, found in compared:
        if found.size_correlation is not None and found.difference.low is not None:
            size = f"the size of a document (correlation with log size {found.size_correlation:+.2f})"
            print(f"- {folder}, {found.task}: the difference depends on {size}, so its interval is too narrow.")
    print(NOTE.format(baseline, LEAST_DIFFERENT, len(compared)))
