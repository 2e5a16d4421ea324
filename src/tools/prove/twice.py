"""Run the committed pipeline twice from scratch and compare every output.

Each run has its own clone of HEAD in a temporary folder, an empty cache and no run cache.
"""

import tempfile
from pathlib import Path

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from tools.common.commands import run
from tools.common.environment import versions
from tools.common.lock import read_lock
from tools.common.paths import MODEL


def prove_twice(out: Path) -> None:
    """Run the pipeline twice and write the comparison to `out`, a JSON file.

    Raise IntegrityError if an output of the two runs differs, or is not the one of the committed dvc.lock.
    """
    repository = Path(run("git", "rev-parse", "--show-toplevel", folder=Path.cwd()).strip())
    head = run("git", "rev-parse", "HEAD", folder=repository).strip()

    # Run the pipeline twice.
    with tempfile.TemporaryDirectory(prefix="twice-") as folder:
        clones = [Path(folder, "first"), Path(folder, "second")]
        for clone in clones:
            run("git", "clone", "-q", repository, clone, folder=repository)
        committed = read_lock(clones[0]).hashes("outs")  # before the run overwrites dvc.lock
        for clone in clones:
            print(f"the {clone.name} of two runs of {head[:12]} begins", flush=True)
            run("dvc", "repro", "--no-run-cache", folder=clone)
        first = read_lock(clones[0]).hashes("outs")
        second = read_lock(clones[1]).hashes("outs")
        computed_on = read_json(clones[1] / MODEL)["segments"]

    # Write the comparison.
    outputs = {}
    for path in sorted(first | second | committed):
        outputs[path] = {
            "md5": first.get(path),
            "same_in_both_runs": first.get(path) == second.get(path),
            "same_as_committed": first.get(path) == committed.get(path),
        }
    packages = versions()
    record = {"commit": head, "python": packages.pop("python"), "packages": packages}
    write_json(out, {**record, "computed_on": computed_on, "outputs": outputs})

    # Say what differs.
    where = f"{out}: commit {head[:12]}"
    differ_in_runs = [path for path, output in outputs.items() if not output["same_in_both_runs"]]
    if differ_in_runs:
        raise IntegrityError(f"{where}: two runs of it differ in {', '.join(differ_in_runs)}")
    differ_from_lock = [path for path, output in outputs.items() if not output["same_as_committed"]]
    if differ_from_lock:
        raise IntegrityError(f"{where}: its runs and its dvc.lock differ in {', '.join(differ_from_lock)}")
    print(f"{len(outputs)} outputs of two runs have the bytes of dvc.lock at {head[:12]}")
