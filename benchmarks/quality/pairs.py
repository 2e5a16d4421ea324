"""Measure how far equal seeds move a change and its base together: the default run and three small changes.

    PYTHONPATH=src:benchmarks python benchmarks/quality/pairs.py

The scores of the default are those of its results here. Each other run is trained and scored by `python src judge_run`
in a clone of the last commit. After each run the result is written; what it has already is not run again.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from evidence.table import read_losses
from harness import RESULTS, ROOT
from lm.core.files import read_json, write_json
from lm.core.paths import PARAMS
from tools.common.parameters import comment_keeping_yaml

PATH = RESULTS / "pairs.json"
BASE = {1: "default", 2: "seed_2", 3: "seed_3", 4: "seed_4"}  # seed → result
CHANGES = {
    "train.weight_decay=0.05": {"weight_decay": 0.05},
    "train.beta2=0.99": {"beta2": 0.99},
    "train.peak_lr=0.011": {"peak_lr": 0.011},
}


def main() -> None:
    """Run what the result lacks, and describe the pairs of each change that has all seeds."""
    base = [read_json(RESULTS / f"{name}.json")["metrics"]["bits_per_byte"] for name in BASE.values()]
    found = {name: {} for name in CHANGES}
    if PATH.exists() and "measured" not in read_json(PATH):
        found |= read_json(PATH)["bits_per_byte"]
    for name, values in CHANGES.items():
        missing = [seed for seed in BASE if str(seed) not in found[name]]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
            change_training(Path(folder), values)
            for seed in missing:
                found[name][str(seed)] = bits_per_byte(Path(folder), seed)
                print(name, seed, found[name][str(seed)], flush=True)
                complete = [name for name, scores in found.items() if len(scores) == len(BASE)]
                pairs = {name: describe(np.array(base), np.array(list(found[name].values()))) for name in complete}
                write_json(PATH, {"default": base, "bits_per_byte": found, "pairs": pairs})


def change_training(folder: Path, values: dict[str, float]) -> None:
    """Write values of the section `train` into the parameters of a clone."""
    editor = comment_keeping_yaml()
    path = folder / PARAMS
    params = editor.load(path.read_text(encoding="utf-8"))
    params["train"] |= values
    with open(path, "w", encoding="utf-8") as file:
        editor.dump(params, file)


def bits_per_byte(folder: Path, seed: int) -> float:
    """Return the score of a run with a seed."""
    losses = folder / "losses.csv"
    environment = {**os.environ, "SEED": str(seed), "LOSSES": str(losses), "REPOSITORY": str(ROOT)}
    subprocess.run([sys.executable, "src", "judge_run"], cwd=folder, env=environment, check=True, stdout=sys.stderr)
    return read_losses(losses).score


def describe(base: np.ndarray, changed: np.ndarray) -> dict[str, float]:
    """Return what the runs of two sides with equal seeds (S,) have in common."""
    return {
        "difference": float(np.mean(changed - base)),
        "correlation": float(np.corrcoef(base, changed)[0, 1]),
        "sd_of_pairs": float(np.std(changed - base, ddof=1)),
        # Of a difference between two runs with different seeds.
        "sd_unpaired": float(np.sqrt(np.var(base, ddof=1) + np.var(changed, ddof=1))),
    }


if __name__ == "__main__":
    main()
