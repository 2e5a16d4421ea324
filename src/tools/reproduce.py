"""Run the committed pipeline twice from nothing and compare every byte: metrics/repro.json.

    python src reproduce [--out metrics/repro.json]

Two clones of HEAD in a temporary folder, an empty cache each and no run cache. Compared are the
hashes of all outputs but the wall-clock's, with each other and with the committed dvc.lock. Exit
code 4 if the two runs differ.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from lm.core.errors import EnvironmentFailure, IntegrityError, command
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from tools.common.paths import PACKAGES

WALL_CLOCK = ("metrics/timing.json", "plots/timing.csv")
LOCK, COMMITTED_LOCK = "dvc.lock", ".committed.lock.tmp"


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser("python src reproduce", description="Run the pipeline twice and compare.")
    parser.add_argument("--out", type=Path, default="metrics/repro.json", help="where the result goes")
    return parser.parse_args(argv)


def run(*arguments: str | Path, folder: Path) -> str:
    """Run a command in a folder and return what it printed; EnvironmentFailure with its last lines if it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("DVC_ROOT", None)
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise EnvironmentFailure(f"{' '.join(map(str, arguments))} ended with {done.returncode}: {last}")
    return done.stdout


def run_pipeline(repository: Path, clone: Path) -> dict[str, str]:
    """Clone HEAD, run everything, return the hash of every output."""
    run("git", "clone", "-q", repository, clone, folder=repository)
    shutil.copyfile(clone / LOCK, clone / COMMITTED_LOCK)  # the run rewrites it
    run("dvc", "repro", "--no-run-cache", folder=clone)
    return output_hashes(clone / LOCK)


def output_hashes(lock: Path) -> dict[str, str]:
    """{path: md5 as DVC records it} of all outputs but those that hold the wall clock."""
    outs = [out for stage in read_yaml(lock)["stages"].values() for out in stage["outs"]]
    return {out["path"]: out["md5"] for out in outs if out["path"] not in WALL_CLOCK}


def compare(first: dict, second: dict, committed: dict) -> dict:
    """What two runs and the committed lock say of every output; the verdict is over the two runs."""
    outputs = {
        path: {
            "md5": first.get(path),
            "same_in_both_runs": first.get(path) == second.get(path),
            "same_as_committed": first.get(path) == committed.get(path),
        }
        for path in sorted(first | second)
    }
    same = all(entry["same_in_both_runs"] for entry in outputs.values())
    return {"verdict": "identical" if same else "different", "outputs": outputs}


@command
def main(argv: list[str]) -> None:
    """Run twice, compare, write the result, and fail if the runs differ."""
    args = parse(argv)
    repository = Path(run("git", "rev-parse", "--show-toplevel", folder=Path.cwd()).strip())
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        clones = [Path(folder) / name for name in ("first", "second")]
        runs = [run_pipeline(repository, clone) for clone in tqdm(clones, desc="run", disable=None)]
        result = compare(*runs, output_hashes(clones[0] / COMMITTED_LOCK))
        segments = read_json(clones[0] / "data/models/model.json")["segments"]
    head = run("git", "rev-parse", "HEAD", folder=repository).strip()
    packages = {name: version(name) for name in PACKAGES}
    write_json(args.out, {"commit": head, "python": sys.version.split()[0], "packages": packages,
                          "computed_on": segments, **result})  # fmt: skip
    different = [path for path, entry in result["outputs"].items() if not entry["same_in_both_runs"]]
    if different:
        raise IntegrityError(f"{args.out}: two runs of {head[:12]} differ in {', '.join(different)}")
    print(f"{len(result['outputs'])} outputs are the same bytes in two runs of {head[:12]}")


if __name__ == "__main__":
    sys.exit(main())
