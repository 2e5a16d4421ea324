"""Tokenize a split in ranks under datatrove, here, with Slurm or with Ray, into shards of one token file.

    python src tokenize_cluster train --ranks 64 --workers 8
    python src tokenize_cluster train --ranks 64 --executor slurm --option time=1:00:00 --option partition=cpu

It takes the place of the stages tokenize_train and tokenize_val: the ids are the same, byte for byte.
The same command again runs only the ranks that are missing or whose text, tokenizer or code is another
now, and, when none is, joins them; under Slurm that is the second call. Then `dvc commit -f
tokenize_train` records the result, and `dvc repro` goes on from there. Ranks share --folder, --raw and
the code: a disk that all machines have. Needs `pip install -r requirements-cluster.txt`.
"""

import argparse
import dataclasses
import os
import shlex
import sys
import time
from pathlib import Path

from lm.core.errors import EnvironmentFailure, ParamsError, command
from lm.core.files import output_lock
from lm.core.params import read_section
from lm.text.documents import Slice, refuse_overlap
from tools.tokenize_cluster.ranks import SRC, RankJob, join_ranks, plan_ranks

PARAMS, RUNTIME = "params.yaml", "runtime.yaml"
STAGES = {"train": "tokenize_train", "validation": "tokenize_val"}


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="python src tokenize_cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("split", choices=tuple(STAGES), help="which slice of the source in params.yaml")
    add("--ranks", type=int, required=True, help="parts of the work; at most one a parquet file is of use")
    add("--workers", type=int, help="ranks at a time (local: a core each; else no limit)")
    add("--executor", choices=("local", "slurm", "ray"), default="local")
    add("--option", action="append", default=[], metavar="NAME=VALUE",
        help="for datatrove's executor: time=1:00:00, mem_per_cpu_gb=4, sbatch_args.account=mine, …")  # fmt: skip
    add("--raw", type=Path, default="data/raw")
    add("--tokenizer", type=Path, default="data/tokenizer")
    add("--folder", type=Path, help="where ranks leave their files and logs (ranks/SPLIT)")
    add("--out", type=Path, help="the token file (data/processed_datasets/SPLIT.bin)")
    args = parser.parse_args(argv)
    for name in ("ranks", "workers"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ParamsError(f"--{name} is {getattr(args, name)}, needed: at least 1")
    args.folder = args.folder or Path("ranks", args.split)
    args.out = args.out or Path("data/processed_datasets", f"{args.split}.bin")
    return args


def read_slice(split: str) -> Slice:
    """The slice of params.yaml that the stage would take; overlap is refused as it is there."""
    source = read_section(PARAMS, "data.source", str)
    slices = {name: read_section(PARAMS, f"sources.{source}.{name}", Slice) for name in STAGES}
    if split == "validation":
        refuse_overlap(slices["train"], slices["validation"], f"{PARAMS}: sources.{source}")
    return slices[split]


def read_options(pairs: list[str]) -> dict:
    """NAME=VALUE → value by name, whole numbers as such; NAME.KEY=VALUE goes into a mapping NAME."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ParamsError(f"--option is {pair!r}, needed: NAME=VALUE")
        name, dot, key = name.partition(".")
        value = int(value) if value.isdecimal() else value
        if dot:
            options.setdefault(name, {})[key] = value
        else:
            options[name] = value
    return options


def executor_class(kind: str) -> type:
    """datatrove's executor of this kind."""
    try:
        if kind == "local":
            from datatrove.executor.local import LocalPipelineExecutor as Executor
        elif kind == "slurm":
            from datatrove.executor.slurm import SlurmPipelineExecutor as Executor
        else:
            import ray  # noqa: F401 # pyright: ignore[reportMissingImports] - the executor would miss it only in run()
            from datatrove.executor.ray import RayPipelineExecutor as Executor
    except ImportError as error:
        raise EnvironmentFailure(
            f"{str(error.name).partition('.')[0]} is not installed; run `pip install -r requirements-cluster.txt` "
            f"({STAGES['train']} and {STAGES['validation']} need none of it)"
        ) from None
    return Executor


def make_executor(job: RankJob, kind: str, workers: int | None, options: dict):
    """The executor that runs every part of a job. ParamsError for an option that it does not know, or misses.

    What has ended is known here (RankJob.unfinished); datatrove, which knows it by a rank's number alone,
    is asked to skip nothing, and has a new folder for its logs each time.
    """
    if kind == "local":
        options = {"workers": min(workers or os.cpu_count() or 1, len(job.parts)), **options}
    elif workers is not None:
        options = {"workers": workers, **options}
    if kind == "slurm":  # a job begins in a shell that knows neither this Python nor src/
        paths = (
            f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH PYTHONPATH={shlex.quote(str(SRC))}:$PYTHONPATH"
        )
        options = {"env_command": f"export {paths}", "job_name": "tokenize", **options}
    if kind == "ray":
        paths = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {"ray_remote_kwargs": {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}}, **options}
    logs = str(job.folder / "logs" / time.strftime("%Y%m%d-%H%M%S"))
    executor = executor_class(kind)
    try:
        return executor(pipeline=[job], tasks=len(job.parts), logging_dir=logs, skip_completed=False, **options)
    except TypeError as error:
        raise ParamsError(f"--executor {kind}: {error}; give what is missing as --option NAME=VALUE") from None


def run_ranks(job: RankJob, args: argparse.Namespace) -> int:
    """Run, or submit, the parts that are not finished; return how many are not finished then."""
    unfinished = job.unfinished()
    print(f"{len(unfinished)} of {len(job.parts)} ranks to tokenize", flush=True)
    if not unfinished:
        return 0
    left = dataclasses.replace(job, parts=unfinished)
    make_executor(left, args.executor, args.workers, read_options(args.option)).run()
    return len(job.unfinished())


@command
def main(argv: list[str]) -> None:
    """Tokenize a split in ranks and, when all have ended, join them."""
    args = parse(argv)
    part, chunk_chars = read_slice(args.split), read_section(RUNTIME, "tokenize.chunk_chars", int)
    if chunk_chars < 1:
        raise ParamsError(f"{RUNTIME}: tokenize.chunk_chars is {chunk_chars}, needed: at least 1")
    with output_lock(args.out):
        job = plan_ranks(args.raw, args.tokenizer, part, args.folder, chunk_chars, args.ranks)
        num_left = run_ranks(job, args)
        if num_left and args.executor == "slurm":
            print(f"{num_left} ranks are submitted; when they have ended, the same command joins them")
            return
        if num_left:
            raise EnvironmentFailure(
                f"{num_left} of {len(job.parts)} ranks did not end well, see {args.folder}/logs; "
                "the same command again runs those alone"
            )
        meta = join_ranks(job, args.out)
    print(
        f"{args.out}: {meta['tokens']:,} tokens in {len(meta['shards'])} shards; "
        f"`dvc commit -f {STAGES[args.split]}` records it"
    )
