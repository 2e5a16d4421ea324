"""Evaluate each checkpoint that train.keep_checkpoints kept: the loss against tokens as a table and as a picture.

    dvc exp run -S 'train.keep_checkpoints=[0,2048,8192,32768,131072,524288]' && python src suite
    python src suite --tasks lm_eval-step-*.json

Runs the stage eval on data/models/checkpoints/NAME into --out/NAME, a folder like data/evaluation, which
`python src export_hf DIR --models … --evaluation …` reads. The table and suite.csv also have the best weights of the
run. --tasks adds the accuracies in files that `python src lm_eval --models data/models/checkpoints/*` wrote.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from lm import plots
from lm.core.errors import IntegrityError, ParamsError, UserError, command
from lm.core.files import read_json, write_csv
from lm.model.weights import CHECKPOINTS, RECORD, WEIGHTS_DIGITS
from tools.common.arguments import tool_parser
from tools.common.paths import AUDIT, EVALUATION, MODEL, MODELS, TOKENIZER, TRAIN, VALIDATION
from tools.common.tables import table

LOOKS = ((plots.BLUE, "-"), (plots.ORANGE, "--"), (plots.GREY, ":"))


def evaluate(models: Path, evaluation: Path) -> None:
    """Run the stage eval on a checkpoint; raise UserError with its exit code if it fails."""
    flags = {"models": models, "train": TRAIN, "validation": VALIDATION, "tokenizer": TOKENIZER, "audit": AUDIT}
    with tempfile.TemporaryDirectory() as folder:
        flags |= {"evaluation": evaluation, "metrics": folder, "plots": folder}
        argv = [sys.executable, "src/eval.py", *(f"--{name}={path}" for name, path in flags.items())]
        if code := subprocess.run(argv, stdout=subprocess.DEVNULL).returncode:
            error = UserError(f"{models}: cannot be evaluated")
            error.exit_code = max(1, code)
            raise error


def row_of(models: Path, evaluation: Path) -> dict:
    """Return a row of the table; raise IntegrityError if the evaluation is of another model."""
    best, details = read_json(models / RECORD)["best"], read_json(evaluation / "details.json")
    weights = best["sha256"][:WEIGHTS_DIGITS]
    if details["weights_sha256"] != weights:
        raise IntegrityError(f"{evaluation}: is about other weights than {models} has; run `dvc repro eval`")
    losses = {name: details[name] for name in ("nats_per_token", "bits_per_byte", "bits_per_byte_se")}
    return {"weights": weights, "step": best["step"], "tokens": best["tokens_seen"], **losses}


def add_accuracies(rows: list[dict], files: list[Path]) -> list[str]:
    """Add accuracy and standard error of each task to the rows of the weights; return the names of the tasks."""
    names = {}
    for figures in (read_json(path, "name files that `python src lm_eval` wrote") for path in files):
        for name, task in figures["tasks"].items():
            for row in rows if "acc" in task["metrics"] else ():
                if figures["model"]["weights_sha256"].startswith(row["weights"]):
                    found, names[name] = task["metrics"]["acc"], None
                    row |= {name: found["value"], f"{name}_se": found["stderr"]}
    return list(names)


def draw(axes: Axes, rows: list[dict], names: list[str], label: str) -> None:
    """Draw columns against tokens, with standard errors, and each one's name and last value at its end."""
    for number, name in enumerate(names):
        color, line = LOOKS[number % len(LOOKS)]
        known = [(row["tokens"], row[name], row[f"{name}_se"] or 0.0) for row in rows if name in row]
        tokens, values, errors = (list(column) for column in zip(*known, strict=True))
        axes.errorbar(tokens, values, errors, color=color, linestyle=line, marker="o", markersize=4, capsize=3)
        plots.label_end(axes, tokens, values, f"{name}\n{values[-1]:.3f}", color)
    axes.set_xscale("symlog", linthresh=min(row["tokens"] for row in rows if row["tokens"]))  # 0 has no logarithm
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="tokens seen (log scale)", ylabel=label)


@command
def main(argv: list[str]) -> None:
    parser = tool_parser("suite", __doc__)
    parser.add_argument("--out", type=Path, default=Path("suite"), help="the folder to write (suite)")
    parser.add_argument(
        "--tasks", type=Path, nargs="+", default=[], metavar="FILE", help="results of lm_eval for the checkpoints"
    )
    args = parser.parse_args(argv)
    if not (names := read_json(MODEL).get(CHECKPOINTS)):
        raise ParamsError(f"{MODEL}: no checkpoints are kept; set train.keep_checkpoints and run `dvc repro`")
    rows = [row_of(MODELS, EVALUATION)]
    for name in names:
        print(f"{len(rows)} of {len(names)}: {name}", flush=True)
        evaluate(MODELS / CHECKPOINTS / name, args.out / name)
        rows.append(row_of(MODELS / CHECKPOINTS / name, args.out / name))
    rows.sort(key=lambda row: row["step"])
    tasks = add_accuracies(rows, args.tasks)
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    write_csv(args.out / "suite.csv", header, cells)
    print("\n".join(table(header, [[f"{x:.4f}" if type(x) is float else x for x in row] for row in cells])))
    panels = [lambda axes: draw(axes, rows, ["bits_per_byte"], "bits per byte")]
    panels += [lambda axes: draw(axes, rows, tasks, "accuracy")] if tasks else []
    figure = plots.figure_of(*panels, size=(7.5, 3.6 * len(panels)), title="Checkpoints of the run, ± standard error")
    plots.save_png(figure, args.out / "suite.png")
