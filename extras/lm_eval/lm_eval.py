"""Run tasks of EleutherAI's lm-eval with the trained model, or with an exported one, on the CPU.

    python src lm_eval --task_folder tasks/stories
    python src lm_eval --models suite/weights/* --task_folder tasks/stories
    python src lm_eval --export exported --tasks blimp lambada_openai --limit 100 --samples items/a

Prints a table and writes the figures, with the versions and hashes of model and tasks, to --output; of several models
to a file each, such as lm_eval-step-000000512.json, which `python src suite --tasks` reads. The windows have the length
of the training. A task of lm-eval downloads its data; a task file can name Python code, so run only task folders that
you trust.
Needs `pip install -r requirements/lm-eval.txt`.
"""

import argparse
import hashlib
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import read_json, sha256_file, write_json, write_text
from lm.model.weights import RECORD
from tools.common.arguments import tool_parser
from tools.common.environment import explain_missing
from tools.common.models import WEIGHTS, check_reader, load_run, open_with_transformers, write_model
from tools.common.paths import MODELS, TOKENIZER
from tools.common.reports import table

PACKAGES = ("lm_eval", "torch", "transformers", "tokenizers", "datasets")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("lm_eval", __doc__)
    add = parser.add_argument
    add("--export", type=Path, help="folder that export_hf wrote; without it, the model of --models")
    add("--models", type=Path, nargs="+", default=[MODELS], help=f"folder of the model, or of several ({MODELS})")
    add("--tokenizer", type=Path, default=TOKENIZER, help=f"tokenizer folder ({TOKENIZER})")
    add("--tasks", nargs="+", default=[], metavar="NAME", help="tasks to run; without it, all of --task_folder")
    add("--task_folder", type=Path, help="folder of your own tasks; their data files are relative to it")
    add("--limit", type=int, help="use only the first documents of each task")
    add("--samples", type=Path, metavar="FOLDER", help="folder for the items of each task")
    add("--output", type=Path, default=Path("lm_eval.json"), help="file for the figures (lm_eval.json)")
    args = parser.parse_args(argv)
    if not (args.tasks or args.task_folder):
        raise ParamsError("nothing to run; name --tasks, --task_folder, or both")
    if args.limit is not None and args.limit < 1:
        raise ParamsError(f"--limit is {args.limit}; it must be at least 1")
    for name, path in (("export", args.export), ("task_folder", args.task_folder)):
        if path and not path.is_dir():
            raise ParamsError(f"--{name}: {path} is not a folder")
    return args


def load_harness() -> ModuleType:
    """Return the module that uses lm-eval. Raise EnvironmentFailure if a package is missing."""
    with explain_missing("lm_eval", "run `pip install -r requirements/lm-eval.txt`"):
        from extras.lm_eval import harness
    return harness


def describe_model(export: Path, record: dict) -> dict:
    return {
        "weights_sha256": record["best"]["sha256"],
        f"{WEIGHTS}_sha256": sha256_file(export / WEIGHTS),
        "tokenizer_sha256": record["tokenizer_sha256"],
        "seq_len": record["seq_len"],
    }


def hash_samples(samples: list[dict]) -> str:
    """Return the hash of a task's documents and requests that lm-eval itself reports."""
    hashes = [sample["doc_hash"] + sample["prompt_hash"] + sample["target_hash"] for sample in samples]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def read_metrics(entry: dict) -> dict[str, dict]:
    """Return name → value and standard error, null if lm-eval gives none, of a task's entry in the results."""
    metrics = {}
    for key, value in entry.items():
        name, comma, metric_filter = key.partition(",")
        is_metric = comma and not name.endswith("_stderr")
        if not is_metric:
            continue
        error = entry.get(f"{name}_stderr,{metric_filter}")
        if isinstance(error, str):  # "N/A"
            error = None
        if metric_filter != "none":
            name = f"{name} ({metric_filter})"
        metrics[name] = {"value": float(value), "stderr": error}
    return metrics


def summarize(results: dict) -> dict[str, dict]:
    """Return version, hash, number of documents and metrics of each task and group, by name."""
    tasks = {}
    for name, entry in results["results"].items():
        tasks[name] = {"version": results["versions"].get(name)}
        samples = results["samples"].get(name)  # None for a group
        if samples:
            tasks[name]["documents"] = len(samples)
            tasks[name]["hash"] = hash_samples(samples)
        tasks[name]["metrics"] = read_metrics(entry)
    return tasks


def rows_of(tasks: dict[str, dict]) -> list[list[str]]:
    """Return a row of the table for each metric of each task."""
    rows = []
    for name, task in tasks.items():
        for metric, found in task["metrics"].items():
            error = "" if found["stderr"] is None else f"{found['stderr']:.4f}"
            rows.append([name, metric, f"{found['value']:.4f}", error])
    return rows


def suffixes_of(folders: list[Path]) -> dict[Path, str]:
    """Return what distinguishes the results of each folder in a name: "-NAME", nothing for one folder alone.

    Raise ParamsError if two folders have the same name.
    """
    if len(folders) == 1:
        return {folders[0]: ""}
    suffixes = {folder: f"-{folder.resolve().name}" for folder in folders}
    if len(set(suffixes.values())) < len(folders):
        raise ParamsError("--models: two folders have the same name; name each folder once, or rename one")
    return suffixes


def run(args: argparse.Namespace, export: Path, suffix: str = "") -> list[list[str]]:
    """Run the tasks with the model of a folder, write the figures, and return the rows of the table.

    `suffix` is added to the names of the files.
    """
    record = read_json(export / RECORD, "name a folder that `python src export_hf` wrote")
    harness = load_harness()
    seq_len = record["seq_len"]

    # Run the tasks.
    folder = args.task_folder and args.task_folder.resolve()
    results = harness.run_tasks(export.resolve(), seq_len, folder, args.tasks, args.limit)
    tasks = summarize(results)

    # Write the figures and, if asked for, the items.
    figures = {
        "model": describe_model(export, record),
        "versions": {name: version(name) for name in PACKAGES},
        "limit": args.limit,
        "tasks": tasks,
    }
    write_json(args.output.with_stem(args.output.stem + suffix), figures)
    if args.samples:
        write_samples(args.samples / suffix.removeprefix("-"), results["samples"])

    best = record["best"]
    return [[*row, f"{best['step']:,}", f"{best['tokens_seen']:,}"] for row in rows_of(tasks)]


def write_samples(folder: Path, by_task: dict[str, list[dict]]) -> None:
    """Write the items of each task, as lm-eval's --log_samples does."""
    for name, samples in by_task.items():
        lines = [json.dumps(sample, default=str, ensure_ascii=False) + "\n" for sample in samples]
        write_text(folder / f"samples_{name}.jsonl", "".join(lines))


def export_run(models: Path, tokenizer_folder: Path, export: Path) -> None:
    """Write a trained model as export_hf does; raise UserError if transformers does not compute the same."""
    model, record, tokenizer = load_run(models, tokenizer_folder)
    write_model(export, model, record, tokenizer)
    check_reader(models, model, open_with_transformers(export), tokenizer.eot_id)


@exit_with_status
def main(argv: list[str]) -> None:
    """Run the tasks with an exported folder, or with a temporary export of each trained model."""
    args = parse(argv)
    load_harness()  # before the export, which takes longer
    if args.export:
        rows = run(args, args.export)
    else:
        rows = []
        for models, suffix in suffixes_of(args.models).items():
            with tempfile.TemporaryDirectory() as folder:
                export = Path(folder)
                export_run(models, args.tokenizer, export)
                rows += run(args, export, suffix)
    rows.sort(key=lambda row: row[:2])  # of one task and metric by step: sorting keeps the order of the models
    print("\n".join(table(["task", "metric", "value", "standard error", "step", "tokens"], rows)))
