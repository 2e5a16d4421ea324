"""Record one run of the pipeline in results/NAME.json: its metrics and the details that the documentation quotes.

    PYTHONPATH=src:benchmarks python benchmarks/quality/run.py default --folder .     # the finished run of a folder
    PYTHONPATH=src:benchmarks python benchmarks/quality/run.py fast --set train.numerics=fast train.dtype=bfloat16

Without --folder, every stage but `plot` runs in a temporary folder with the parameters of the workspace and those of
--set. The workspace does not change.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from harness import RESULTS, ROOT, change_params, read_values, run_stage, stage_folder
from lm.core.files import read_json, write_json


def run_pipeline(folder: Path, values: dict) -> Path:
    """Run the stages one after the other in a folder of their own."""
    stage_folder(folder)
    change_params(folder, values)
    for stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]:
        if stage != "plot":
            used = run_stage(folder, stage)
            print(f"{stage}: {used['seconds']:.0f} s, {used['peak_rss_gib']:.2f} GiB", flush=True)
    return folder


def describe(folder: Path) -> dict:
    """Return the metrics, the training record and the details of the finished run of a folder."""
    model = read_json(folder / "data" / "models" / "model.json")
    timing = read_json(folder / ".runs" / model["fingerprint"] / "timing.json")
    names = ("data", "train", "eval")
    metrics = {key: value for name in names for key, value in read_json(folder / "metrics" / f"{name}.json").items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, text=True, capture_output=True
    )
    return {
        "commit": commit.stdout.strip(),
        "metrics": metrics | {"train_seconds": timing["train_seconds"]},
        "computed_on": timing["computed_on"],
        "training": model["training"],
        "segments": model["segments"],
        "audit": read_json(folder / "data" / "audit" / "details.json"),
        "evaluation": read_json(folder / "data" / "evaluation" / "details.json"),
    }


def printed(folder: Path, *tool: str) -> str:
    """Return what a tool prints in a shell whose environment is not active."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    command = [sys.executable, "src", *tool]
    return subprocess.run(command, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout


def generate(folder: Path, prompt: str, max_new_tokens: int) -> dict:
    """Return a prompt and what `python src generate` prints for it."""
    return {"prompt": prompt, "text": printed(folder, "generate", prompt, "--max_new_tokens", str(max_new_tokens))}


def main() -> None:
    """Record the run that the command line names."""
    parser = argparse.ArgumentParser(description="Record a run of the pipeline.")
    parser.add_argument("name", help="of the file of results")
    parser.add_argument("--folder", type=Path, help="record its finished run instead of running the stages")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters to change")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"{args.name}-") as temporary:
        found = describe(args.folder or run_pipeline(Path(temporary), read_values(args.set)))
    if args.folder:
        found["generated"] = generate(args.folder, "#include <", max_new_tokens=30)
        found["verdict"] = printed(args.folder, "verdict")
    write_json(RESULTS / f"{args.name}.json", found)


if __name__ == "__main__":
    main()
