"""Tokenize a split in ranks under datatrove (local or Slurm) into one token file.

    python src tokenize_cluster train --ranks 64 --workers 8
    python src tokenize_cluster train --ranks 64 --executor slurm --option time=1:00:00 --option partition=cpu

Replaces the stages tokenize_train and tokenize_val; the ids are the same, byte for byte. If it is run again, it
tokenizes only ranks that are missing or whose text, tokenizer or code changed. It joins the ranks when all have
finished; under Slurm, the second call does so. Then `dvc commit -f tokenize_train` records the result, and `dvc repro`
continues from there. The repository must be on a disk that all machines can read.
Needs `pip install -r requirements/cluster.txt`.
"""

import argparse
import dataclasses
import importlib
import os
import shlex
import sys
import time
from pathlib import Path

from extras.tokenize_cluster.ranks import ROOT, RankJob, join_ranks, plan_ranks
from lm.core.errors import EnvironmentFailure, ParamsError, exit_with_status
from lm.core.files import output_lock
from lm.text.slices import read_slice
from tools.record.arguments import tool_parser
from tools.record.environment import explain_missing
from tools.record.paths import RAW, TOKENIZER, TRAIN, VALIDATION

STAGES = {"train": "tokenize_train", "validation": "tokenize_val"}
OUTPUTS = {"train": TRAIN, "validation": VALIDATION}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("tokenize_cluster", __doc__)
    add = parser.add_argument
    add("split", choices=tuple(STAGES), help="which slice of the selected source")
    add(
        "--ranks",
        type=int,
        required=True,
        help="number of ranks; at most one per row group, of about 4 MB",
    )
    add("--workers", type=int, help="ranks at a time (local: one per core; slurm: no limit)")
    add("--executor", choices=("local", "slurm"), default="local", help="datatrove's executor (local)")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for datatrove's executor: time=1:00:00, mem_per_cpu_gb=4, sbatch_args.account=mine, …",
    )
    args = parser.parse_args(argv)
    for name in ("ranks", "workers"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise ParamsError(f"--{name} is {value}; it must be at least 1")
    return args


def read_options(pairs: list[str]) -> dict:
    """Return NAME=VALUE pairs as a dict, whole numbers as int; NAME.KEY=VALUE goes into a dict NAME."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ParamsError(f"--option is {pair!r}; it must be NAME=VALUE")
        name, dot, key = name.partition(".")
        place = options.setdefault(name, {}) if dot else options
        place[key if dot else name] = int(value) if value.isdecimal() else value
    return options


def make_executor(job: RankJob, kind: str, workers: int | None, options: dict):
    """Return datatrove's executor that runs every rank of a job; raise ParamsError for an unknown or missing option."""
    if kind == "local":
        options = {"workers": min(workers or os.cpu_count() or 1, len(job.ranks)), **options}
    else:  # the job's shell knows neither this Python nor this code
        python = Path(sys.executable).parent
        code = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        paths = f"PATH={shlex.quote(str(python))}:$PATH PYTHONPATH={shlex.quote(code)}:$PYTHONPATH"
        limit = {} if workers is None else {"workers": workers}
        options = {"env_command": f"export {paths}", "job_name": "tokenize", **limit, **options}
    with explain_missing("datatrove", "run `pip install -r requirements/cluster.txt` (the stages work without it)"):
        module = importlib.import_module(f"datatrove.executor.{kind}")
    executor = getattr(module, f"{kind.title()}PipelineExecutor")
    # datatrove knows finished ranks by their numbers alone, so it must skip none, and each call has its own logs.
    logs = str(job.folder / "logs" / time.strftime("%Y%m%d-%H%M%S"))
    try:
        return executor(pipeline=[job], tasks=len(job.ranks), logging_dir=logs, skip_completed=False, **options)
    except TypeError as error:
        raise ParamsError(f"--executor {kind}: {error}; give what is missing as --option NAME=VALUE") from None


@exit_with_status
def main(argv: list[str]) -> None:
    args = parse(argv)
    text_slice = read_slice(args.split)
    folder = Path("ranks", args.split)
    out = OUTPUTS[args.split]
    with output_lock(out):
        # Divide the files among the ranks and run those that are not finished.
        job = plan_ranks(RAW, TOKENIZER, text_slice, folder, args.ranks)
        unfinished = job.unfinished()
        print(f"{len(unfinished)} of {len(job.ranks)} ranks to tokenize", flush=True)
        if unfinished:
            remaining = dataclasses.replace(job, ranks=unfinished)
            make_executor(remaining, args.executor, args.workers, read_options(args.option)).run()
        num_left = len(job.unfinished()) if unfinished else 0
        if num_left and args.executor == "slurm":
            print(f"{num_left} ranks are submitted; when they have finished, the same command joins them")
            return
        if num_left:
            failed = f"{num_left} of {len(job.ranks)} ranks failed, see {folder}/logs"
            raise EnvironmentFailure(f"{failed}; the same command again runs only those")
        # Join the ranks' files.
        meta = join_ranks(job, out)
    print(f"{out}: {meta['tokens']:,} tokens; `dvc commit -f {STAGES[args.split]}` records it")
