"""Record one run in a file under benchmarks/results: its metrics and the details that the documentation quotes.

    python benchmarks/record_run.py workspace benchmarks/results/default.json
    python benchmarks/record_run.py stories benchmarks/results/stories.json

The first argument is `workspace`, an experiment or a Git revision. Files that Git does not hold are read through DVC.
"""

import argparse
import json
from pathlib import Path

import dvc.api

METRICS = ("data", "train", "eval")


def record_run(revision: str) -> dict:
    """Return the metrics, the training record and the details of a run."""
    model = read("data/models/model.json", revision)
    timing = json.loads(Path(".runs", model["fingerprint"], "timing.json").read_text(encoding="utf-8"))
    metrics = {key: value for name in METRICS for key, value in read(f"metrics/{name}.json", revision).items()}
    return {
        "metrics": metrics | {"train_seconds": timing["train_seconds"]},
        "computed_on": timing["computed_on"],
        "training": model["training"],
        "segments": model["segments"],
        "audit": read("data/audit/details.json", revision),
        "evaluation": read("data/evaluation/details.json", revision),
    }


def read(path: str, revision: str) -> dict:
    """Read a JSON file of the pipeline at a revision."""
    if revision == "workspace":
        return json.loads(Path(path).read_text(encoding="utf-8"))
    return json.loads(dvc.api.read(path, rev=revision))


def main() -> None:
    """Record the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.write_text(json.dumps(record_run(args.revision), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
