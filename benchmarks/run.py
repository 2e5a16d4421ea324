"""Make results again: those named, or every result whose code or inputs have changed since (`make bench`).

    PYTHONPATH=src:benchmarks python benchmarks/run.py [--list] [NAME …]

Each result records in `measured` what decides it, with the hashes that Git has for these files and folders. A result
is stale if one of them differs, or if it has none.
"""

import argparse
import os
import subprocess
import sys
from typing import NamedTuple

from harness import RESULTS, ROOT
from lm.core.files import read_json, write_json


class Result(NamedTuple):
    """How a result is made, and the files and folders that decide it, beside the script, harness.py and src/lm/core."""

    command: str
    measured: tuple[str, ...]


RECORDS = ("metrics/data.json", "metrics/train.json", "metrics/eval.json")
PIPELINE = ("src", "dvc.yaml", "params.yaml", "presets.yaml", "sources.yaml", "requirements/bits.txt")
JUDGE = (
    "benchmarks/quality/nights.py",
    *(f"src/evidence/judge/{name}.py" for name in ("decision", "judgements", "levels", "night")),
)
STEP = (
    "src/lm/exact",
    "src/lm/model",
    "src/lm/tokens",
    "src/lm/train",
    "params.yaml",
    "presets.yaml",
)

COMPILED = ("benchmarks/absent_gpu", "src/lm/model", "presets.yaml", "requirements")

RUN = "python benchmarks/quality/run.py"
PAGE = "python benchmarks/quality/page.py"
PROGRAMS = {
    "default": Result(f"{RUN} default", RECORDS),
    "fast": Result(f"{RUN} fast train.numerics=fast train.dtype=bfloat16", PIPELINE),
    "seed_2": Result(f"{RUN} seed_2 train.seed=2", PIPELINE),
    "seed_3": Result(f"{RUN} seed_3 train.seed=3", PIPELINE),
    "seed_4": Result(f"{RUN} seed_4 train.seed=4", PIPELINE),
    "seed_5": Result(f"{RUN} seed_5 train.seed=5", PIPELINE),
    "first_experiment": Result(f"{RUN} first_experiment train.max_tokens=921600", PIPELINE),
    "second_experiment": Result(f"{RUN} second_experiment train.seq_len=512", PIPELINE),
    "first_hour": Result(f"{PAGE} first_hour", (*PIPELINE, "README.md")),
    "tutorial": Result(f"{PAGE} tutorial", (*PIPELINE, "docs/tutorial.md")),
    "judge": Result("python benchmarks/quality/judge.py", JUDGE),
    "pairs": Result(
        "python benchmarks/quality/pairs.py",
        (*RECORDS, "params.yaml", *(f"benchmarks/results/{name}.json" for name in ("seed_2", "seed_3", "seed_4"))),
    ),
    "exact": Result("python benchmarks/speed/exact.py", (*STEP, *RECORDS)),
    "compiled": Result("python benchmarks/speed/compiled.py", COMPILED),
    "first_steps": Result("python benchmarks/speed/first_steps.py", ("benchmarks/speed/gpu_models.py", *STEP)),
}


def git(*arguments: str) -> str:
    """Return what Git prints."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def paths_of(name: str) -> list[str]:
    """Return all files and folders that decide a result."""
    program = PROGRAMS[name]
    scripts = [word for word in program.command.split() if word.endswith(".py")]
    return [*scripts, "benchmarks/harness.py", "src/lm/core", *program.measured]


def hashes_of(name: str) -> dict[str, str]:
    """Return path → the hash that the last commit has of it, for all that decides a result."""
    return {path: git("rev-parse", f"HEAD:{path}") for path in paths_of(name)}


def is_stale(name: str) -> bool:
    """Return whether a result was made from other files than those of the last commit, or is not there."""
    path = RESULTS / f"{name}.json"
    return not path.exists() or read_json(path).get("measured") != hashes_of(name)


def make(name: str) -> None:
    """Make a result, and record in it the commit and the hashes."""
    if changed := git("status", "--porcelain", "--", *paths_of(name)):
        sys.exit(f"error: {name}: these files differ from the last commit; commit them first:\n{changed}")
    measured = hashes_of(name)
    commit = git("rev-parse", "--short", "HEAD")
    print(PROGRAMS[name].command, flush=True)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'benchmarks'}"}
    subprocess.run(PROGRAMS[name].command, shell=True, cwd=ROOT, env=environment, check=True)
    path = RESULTS / f"{name}.json"
    write_json(path, read_json(path) | {"commit": commit, "measured": measured})


def main() -> None:
    """Make the results that the command line names, or all stale ones; with --list, name the stale ones alone."""
    parser = argparse.ArgumentParser(description="Make results again.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)} (all that are stale)")
    parser.add_argument("--list", action="store_true", help="print the names of the stale ones, and make none")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PROGRAMS):
        parser.error(f"no program makes {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    for name in args.names or filter(is_stale, PROGRAMS):
        if args.list:
            print(name)
        else:
            make(name)


if __name__ == "__main__":
    main()
