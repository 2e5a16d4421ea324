"""Train a run in parts, each on another processor and killed, and compare it with the undisturbed run.

    PYTHONPATH=src:benchmarks python benchmarks/quality/migration.py --emulated "qemu-aarch64 -L ROOT PYTHON" --name ARM
    PYTHONPATH=src:benchmarks python benchmarks/quality/migration.py --draw  # the picture of the recorded run

The run is the beginning of the default, with a decay of its own: an emulated processor takes half a minute for a step.
It runs in a clone of the last commit, first undisturbed, then in parts: one process, an emulated processor, two
processes, one process. Each part but the last is ended by SIGKILL.
"""

import argparse
import functools
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness import RESULTS, change_params, clone_of_last_commit, hardware
from lm import plots
from lm.core.files import read_json, sha256_file, write_json
from lm.train.checkpoints import list_checkpoints

COMPARED = (
    "data/models/best_model_params.pt",
    "data/models/last_model_params.pt",
    "plots/training.csv",
    "plots/validation.csv",
    "metrics/train.json",
)
STAGE = (
    "src/train.py --train data/processed_datasets/train.bin --validation data/processed_datasets/validation.bin "
    "--tokenizer data/tokenizer --models data/models --metrics metrics --plots plots"
)
STEP_TOKENS = 2048
VALUES = {
    "train.max_tokens": 80 * STEP_TOKENS,
    "train.micro_batch_tokens": STEP_TOKENS // 2,  # which two processes can share
    "train.log_every_tokens": STEP_TOKENS,
    "train.eval_every_tokens": 10 * STEP_TOKENS,
    "train.eval_tokens": 2 * STEP_TOKENS,
}
KILLS = (20, 32, 56)  # the steps after which a part is killed
RECORD = RESULTS / "migration.json"
PICTURE = RESULTS / "migration.png"
LOOKS = [(plots.BLUE, "-"), (plots.ORANGE, "--")]  # of the processors, in the order of their first parts


def newest_step(clone: Path) -> int:
    """Return the step of the newest checkpoint of the clone's only run, 0 if there is none."""
    steps = [checkpoint.step for run in (clone / ".runs").glob("[!.]*") for checkpoint in list_checkpoints(run)]
    return max(steps, default=0)


def set_runtime(clone: Path, **values: int) -> None:
    """Set values of the section `train` in the clone's runtime.yaml."""
    content = yaml.safe_load((clone / "runtime.yaml").read_text())
    content["train"] |= values
    (clone / "runtime.yaml").write_text(yaml.safe_dump(content))


def train_part(clone: Path, python: str, until: int | None) -> None:
    """Train with this Python until there is a checkpoint of step `until`, and kill all processes; None: to the end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DVC_ROOT", "PYTHONPATH")}
    stage = psutil.Popen([*shlex.split(python), *STAGE.split()], cwd=clone, env=environment)
    while stage.poll() is None:
        time.sleep(0.05)
        if until is not None and newest_step(clone) >= until:
            processes = [stage, *stage.children(recursive=True)]
            for process in processes:
                process.kill()
            psutil.wait_procs(processes)
    status = stage.wait()
    wanted = 0 if until is None else -signal.SIGKILL
    if status != wanted:
        sys.exit(f"error: the stage ended with {status}; it must be {wanted}")


def draw_parts(axes: Axes, losses: list[float], parts: list[dict]) -> None:
    """Draw the training loss of each step, each processor in its colour and line style, with the part's name above."""
    processors = dict.fromkeys(part["name"].split(", ")[0] for part in parts)
    looks = dict(zip(processors, LOOKS, strict=True))
    for part in parts:
        color, line = looks[part["name"].split(", ")[0]]
        first = max(1, part["from_step"])
        last = part["to_step"]
        axes.plot(range(first, last + 1), losses[first - 1 : last], color=color, linestyle=line)
        place = ((part["from_step"] + last) / 2, 0.97)
        look = {"color": color, "fontsize": 9, "fontweight": "bold", "ha": "center", "va": "top"}
        axes.annotate(part["name"].replace(", ", "\n"), place, xycoords=("data", "axes fraction"), **look)
    for part in parts[:-1]:
        axes.axvline(part["to_step"], color=plots.GREY, linewidth=0.8, linestyle=":")
    axes.set(ylabel="training loss\nnats per token", ylim=(min(losses) - 0.5, max(losses) + 2.5))


def draw_undisturbed(axes: Axes, losses: list[float]) -> None:
    """Draw the training loss of each step of the undisturbed run."""
    axes.plot(range(1, len(losses) + 1), losses, color=plots.GREY, linewidth=1.0)
    place = (0.98, 0.92)
    look = {"color": plots.GREY, "fontsize": 9, "ha": "right", "va": "top"}
    axes.annotate("not killed, on one processor: the same losses", place, xycoords="axes fraction", **look)
    axes.set(xlabel="step", ylabel="training loss\nnats per token", ylim=(min(losses) - 0.5, max(losses) + 0.5))


def picture(found: dict) -> Figure:
    """Return the picture of a record: the run in parts, and below it the undisturbed one, which has its losses."""
    curves = "plots/training.csv"
    if found["migrated_sha256"][curves] != found["undisturbed_sha256"][curves]:
        sys.exit(f"error: {RECORD}: the runs have other losses; one curve cannot be drawn for both")
    losses = found["training_loss"]
    panels = (
        functools.partial(draw_parts, losses=losses, parts=found["parts"]),
        functools.partial(draw_undisturbed, losses=losses),
    )
    title = "Killed three times, moved to ARM and back: the bits of an undisturbed run"
    return plots.figure_of(*panels, size=(7.5, 4.6), heights=(3, 2), title=title)


def main() -> None:
    """Record the run in migration.json, and draw it."""
    parser = argparse.ArgumentParser(description="Train in parts on several processors.")
    parser.add_argument("--draw", action="store_true", help="draw the recorded run again, and train nothing")
    parser.add_argument("--emulated", metavar="COMMAND", help="of Python on the emulated processor")
    parser.add_argument("--name", help="of that processor, for the record")
    args = parser.parse_args()
    if args.draw:
        plots.save_png(picture(read_json(RECORD)), PICTURE)
        return
    if not (args.emulated and args.name):
        parser.error("give --emulated and --name, or --draw")
    here = hardware()["processor"].split(" (")[0]
    # Name, Python, processes, step of the kill.
    planned = [
        (f"{here}, one process", sys.executable, 1, KILLS[0]),
        (args.name, args.emulated, 1, KILLS[1]),
        (f"{here}, two processes", sys.executable, 2, KILLS[2]),
        (f"{here}, one process", sys.executable, 1, None),
    ]

    with tempfile.TemporaryDirectory(prefix="migration-") as temporary:
        clone = clone_of_last_commit(Path(temporary))
        change_params(clone, VALUES)

        # Train undisturbed, and remove everything that it made.
        set_runtime(clone, num_processes=1, checkpoint_every_s=0)
        train_part(clone, sys.executable, until=None)
        undisturbed = {name: sha256_file(clone / name) for name in COMPARED}
        shutil.rmtree(clone / ".runs")
        for name in COMPARED:
            (clone / name).unlink()

        # Train in parts.
        parts = []
        for name, python, num_processes, until in planned:
            set_runtime(clone, num_processes=num_processes)
            begun = time.perf_counter()
            from_step = newest_step(clone)
            train_part(clone, python, until)
            to_step = newest_step(clone) if until else VALUES["train.max_tokens"] // STEP_TOKENS
            seconds = round(time.perf_counter() - begun)
            parts.append({"name": name, "from_step": from_step, "to_step": to_step, "seconds": seconds})
            print(parts[-1], flush=True)
        migrated = {name: sha256_file(clone / name) for name in COMPARED}
        curve = plots.read_csv(clone / "plots/training.csv")

    found = {"hardware": hardware(), "parts": parts, "training_loss": curve["train_loss"]}
    found |= {"undisturbed_sha256": undisturbed, "migrated_sha256": migrated}
    write_json(RECORD, found)
    if migrated != undisturbed:
        sys.exit("error: the bits differ")
    plots.save_png(picture(found), PICTURE)


if __name__ == "__main__":
    main()
