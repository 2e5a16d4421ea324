"""Run the committed pipeline twice from scratch and compare every output: metrics/repro.json.

    python src reproduce [--out metrics/repro.json]

Each run has its own clone of HEAD in a temporary folder, an empty cache and no run cache. The hashes of all
outputs are compared with each other and with the committed dvc.lock. Exit status 4 if
the two runs differ.
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from lm.core.errors import EnvironmentFailure, IntegrityError, command
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from tools.common.arguments import tool_parser
from tools.common.paths import LOCK, MODEL, PACKAGES


def run(*arguments: str | Path, folder: Path) -> str:
    """Run a command in a folder and return its output. Raise EnvironmentFailure with its last lines if it fails."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("DVC_ROOT", None)
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise EnvironmentFailure(f"{' '.join(map(str, arguments))} ended with {done.returncode}: {last}")
    return done.stdout


def output_hashes(lock: Path) -> dict[str, str]:
    """Return {path: DVC's MD5} of all outputs."""
    return {out["path"]: out["md5"] for stage in read_yaml(lock)["stages"].values() for out in stage["outs"]}


def compare(first: dict, second: dict, committed: dict) -> dict:
    """Compare the outputs of two runs and of the committed lock; the verdict is about the two runs."""
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
    """Run the pipeline twice, write the comparison, and raise IntegrityError if the runs differ."""
    parser = tool_parser("reproduce", __doc__)
    parser.add_argument("--out", type=Path, default="metrics/repro.json", help="result file (metrics/repro.json)")
    args = parser.parse_args(argv)
    repository = Path(run("git", "rev-parse", "--show-toplevel", folder=Path.cwd()).strip())
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        clones = [Path(folder) / name for name in ("first", "second")]
        hashes = []
        for clone in tqdm(clones, desc="run", disable=None):
            run("git", "clone", "-q", repository, clone, folder=repository)
            hashes.append(output_hashes(clone / LOCK))  # the run overwrites dvc.lock
            run("dvc", "repro", "--no-run-cache", folder=clone)
            hashes.append(output_hashes(clone / LOCK))
        committed, first, _, second = hashes
        segments = read_json(clones[0] / MODEL)["segments"]
    result, head = compare(first, second, committed), run("git", "rev-parse", "HEAD", folder=repository).strip()
    made_with = {"python": sys.version.split()[0], "packages": {name: version(name) for name in PACKAGES}}
    write_json(args.out, {"commit": head, **made_with, "computed_on": segments, **result})
    different = [path for path, entry in result["outputs"].items() if not entry["same_in_both_runs"]]
    if different:
        raise IntegrityError(f"{args.out}: two runs of {head[:12]} differ in {', '.join(different)}")
    print(f"{len(result['outputs'])} outputs have the same bytes in two runs of {head[:12]}")
