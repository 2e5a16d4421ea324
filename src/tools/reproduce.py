"""Run the committed pipeline twice from scratch and compare every output: metrics/repro.json.

    python src reproduce [--out metrics/repro.json]

Each run has its own clone of HEAD in a temporary folder, an empty cache and no run cache. Exit status 4 if an output of
the two runs differs, or is not the one of the committed dvc.lock.
"""

import tempfile
from pathlib import Path

from lm.core.errors import IntegrityError, exit_with_status
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from tools.common.arguments import tool_parser
from tools.common.commands import run
from tools.common.environment import versions
from tools.common.paths import LOCK, MODEL


def output_hashes(lock: Path) -> dict[str, str]:
    """Return {path: DVC's MD5} of all outputs."""
    return {out["path"]: out["md5"] for stage in read_yaml(lock)["stages"].values() for out in stage["outs"]}


@exit_with_status
def main(argv: list[str]) -> None:
    """Run the pipeline twice, write the comparison, and raise IntegrityError if an output differs."""
    parser = tool_parser("reproduce", __doc__)
    parser.add_argument("--out", type=Path, default="metrics/repro.json", help="result file (metrics/repro.json)")
    args = parser.parse_args(argv)
    repository = Path(run("git", "rev-parse", "--show-toplevel", folder=Path.cwd()).strip())
    head = run("git", "rev-parse", "HEAD", folder=repository).strip()
    hashes = []
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        for name in ("first", "second"):
            clone = Path(folder) / name
            print(f"the {name} of two runs of {head[:12]} begins", flush=True)
            run("git", "clone", "-q", repository, clone, folder=repository)
            committed = output_hashes(clone / LOCK)  # the run overwrites dvc.lock
            run("dvc", "repro", "--no-run-cache", folder=clone)
            hashes.append(output_hashes(clone / LOCK))
        computed_on = read_json(clone / MODEL)["segments"]
    first, second = hashes
    outputs = {
        path: {
            "md5": first.get(path),
            "same_in_both_runs": first.get(path) == second.get(path),
            "same_as_committed": first.get(path) == committed.get(path),
        }
        for path in sorted(first | second | committed)
    }
    packages = versions()
    made_with = {"python": packages.pop("python"), "packages": packages}
    write_json(args.out, {"commit": head, **made_with, "computed_on": computed_on, "outputs": outputs})
    for key, whose in (("same_in_both_runs", "two runs of it"), ("same_as_committed", "its runs and its dvc.lock")):
        if different := [path for path, same in outputs.items() if not same[key]]:
            raise IntegrityError(f"{args.out}: commit {head[:12]}: {whose} differ in {', '.join(different)}")
    print(f"{len(outputs)} outputs of two runs have the bytes of dvc.lock at {head[:12]}")
