"""Delete the checkpoints of a run, rebuild each from its digest, and record the bytes and seconds of both.

    PYTHONPATH=src:benchmarks python benchmarks/quality/checkpoints.py

It trains the default with twelve validations in a clone of the last commit, and keeps the checkpoint of each. Then it
deletes all of them, and rebuilds one after the other with `python src verify --retrain STEP`: each from the one before.
"""

import re
import sys
import tempfile
import time
from pathlib import Path

from harness import RESULTS, ROOT, clone_of_last_commit, hardware, run
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.train.checkpoints import list_checkpoints, load_checkpoint
from lm.train.state import digest_of, named_tensors

NUM_VALIDATIONS = 12


def digests(folder: Path) -> dict[int, str]:
    """Return the digest of the state of each checkpoint, by its step."""
    return {each.step: digest_of(named_tensors(load_checkpoint(each))) for each in list_checkpoints(folder)}


def main() -> None:
    """Record the twelve checkpoints."""
    max_tokens = read_yaml(ROOT / "params.yaml")["train"]["max_tokens"]
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as temporary:
        clone = clone_of_last_commit(Path(temporary))

        # Train, and keep every checkpoint.
        runtime = clone / "runtime.yaml"
        kept = re.sub(r"keep_checkpoints: \d+", f"keep_checkpoints: {NUM_VALIDATIONS}", runtime.read_text())
        runtime.write_text(kept)
        run(clone, f"dvc exp run -S train.eval_every_tokens={max_tokens // NUM_VALIDATIONS}")
        folder = clone / ".runs" / read_json(clone / "data/models/model.json")["fingerprint"]
        recorded = digests(folder)
        sizes = [each.path.stat().st_size for each in list_checkpoints(folder)]
        train_seconds = read_json(folder / "timing.json")["train_seconds"]

        # Delete them, and rebuild each. The last one is that of the end, which no run keeps.
        for checkpoint in list_checkpoints(folder):
            checkpoint.path.unlink()
            checkpoint.record.unlink()
        steps = [int(row.split(",")[0]) for row in (clone / "plots/validation.csv").read_text().splitlines()[2:]]
        seconds = []
        for step in steps:
            begun = time.perf_counter()
            print(run(clone, f"python src verify --retrain {step}"), flush=True)
            seconds.append(round(time.perf_counter() - begun, 1))
        rebuilt = digests(folder)

    # `verify` has compared each with the curve. Compare them with the deleted files too.
    kept_steps = sorted(recorded.keys() & rebuilt.keys())
    if any(rebuilt[step] != recorded[step] for step in kept_steps):
        sys.exit("error: a rebuilt checkpoint has another digest than the deleted one")
    write_json(
        RESULTS / "checkpoints.json",
        {
            "steps": steps,
            "kept_steps": kept_steps,
            "bytes_of_each": sizes[0],
            "train_seconds": train_seconds,
            "seconds": seconds,
            "hardware": hardware(),
        },
    )


if __name__ == "__main__":
    main()
