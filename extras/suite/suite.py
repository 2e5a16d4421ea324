"""Evaluate each checkpoint that train.keep_weights_at kept: the loss against tokens as a table and as a picture.

    dvc exp run -S 'train.keep_weights_at=[0,2048,8192,32768,131072,524288]' && python src suite
    python src suite --tasks lm_eval-step-*.json

Runs the stage eval on data/models/kept_weights/NAME into --out/NAME, a folder like data/evaluation, which
`python src export_hf DIR --models … --evaluation …` reads. A checkpoint that was evaluated with the same inputs, as
dvc.lock records them, is not evaluated again. If an input of eval changed since, `dvc repro eval` has to run first, so
that all rows are evaluated alike. The table and suite.csv also have the best weights of the run. --tasks adds the
accuracies in files that `python src lm_eval --models data/models/kept_weights/*` wrote.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, SymmetricalLogLocator

from lm import plots
from lm.core.errors import IntegrityError, ParamsError, UserError, exit_with_status
from lm.core.files import read_json, write_csv, write_json
from lm.core.paths import KEPT_WEIGHTS
from lm.model.weights import RECORD, WEIGHTS_DIGITS, step_name
from tools.common.arguments import tool_parser
from tools.common.lock import read_lock
from tools.common.paths import AUDIT, EVALUATION, LOCK, MODEL, MODELS, TOKENIZER, TRAIN, VALIDATION
from tools.common.tables import table

LOOKS = ((plots.BLUE, "-"), (plots.ORANGE, "--"), (plots.GREY, ":"))
MARKERS = "os^D"
LABEL_POINTS = 13  # height of a label


def refuse_changed_inputs() -> None:
    """Raise IntegrityError if parameters, code or data of the stage eval are not those that dvc.lock records."""
    from dvc.repo import Repo  # takes a second to import

    from tools.common.dvc_repository import explain_failures

    with explain_failures(), Repo(".") as repo:
        changes = repo.status(targets=["eval"])
    if changes:
        found = "inputs or outputs of the stage eval changed since it ran (`dvc status eval` lists them)"
        raise IntegrityError(f"{LOCK}: {found}; run `dvc repro eval`, or undo the change")


def inputs_of(models: Path) -> dict:
    """Return what decides an evaluation: the weights and, from dvc.lock, the other inputs of the stage eval."""
    stage = read_lock()["stages"]["eval"]
    hashes = {dep["path"]: dep["md5"] for dep in stage["deps"] if dep["path"] != str(MODELS)}
    return {"weights": read_json(models / RECORD)["best"]["sha256"], "hashes": hashes, "params": stage["params"]}


def evaluate(models: Path, evaluation: Path) -> None:
    """Run the stage eval on a checkpoint, unless it has; raise UserError with its exit code if it fails."""
    inputs = inputs_of(models)
    recorded = evaluation / "inputs.json"
    if recorded.exists() and read_json(recorded) == inputs:
        return
    flags = {"models": models, "train": TRAIN, "validation": VALIDATION, "tokenizer": TOKENIZER, "audit": AUDIT}
    with tempfile.TemporaryDirectory() as folder:
        flags |= {"evaluation": evaluation, "metrics": folder, "plots": folder}
        argv = [sys.executable, "src/eval.py", *(f"--{name}={path}" for name, path in flags.items())]
        if code := subprocess.run(argv, stdout=subprocess.DEVNULL).returncode:
            error = UserError(f"{models}: cannot be evaluated")
            error.exit_code = max(1, code)
            raise error
    write_json(recorded, inputs)


def row_of(models: Path, evaluation: Path) -> dict:
    """Return a row of the table; raise IntegrityError if the evaluation is of another model."""
    best = read_json(models / RECORD)["best"]
    details = read_json(evaluation / "details.json")
    weights = best["sha256"][:WEIGHTS_DIGITS]
    if details["weights_sha256"] != weights:
        raise IntegrityError(f"{evaluation}: is about other weights than {models} has; run `dvc repro eval`")
    losses = {name: details[name] for name in ("nats_per_token", "bits_per_byte", "bits_per_byte_se")}
    return {"weights": weights, "step": best["step"], "tokens": best["tokens_seen"], **losses}


def add_accuracies(rows: list[dict], files: list[Path]) -> list[str]:
    """Add accuracy and standard error of each task to the rows of the weights; return the names of the tasks.

    Raise IntegrityError if no row has the weights of a file.
    """
    names = {}
    for path in files:
        figures = read_json(path, "name files that `python src lm_eval` wrote")
        sha256 = figures["model"]["weights_sha256"]
        found = [row for row in rows if sha256.startswith(row["weights"])]
        if not found:
            raise IntegrityError(f"{path}: is about the weights {sha256}, which are none of this run's; run lm_eval")
        for name, task in figures["tasks"].items():
            if "acc" in task["metrics"]:
                accuracy, names[name] = task["metrics"]["acc"], None
                found[0] |= {name: accuracy["value"], f"{name}_se": accuracy["stderr"]}
    return list(names)


def draw(axes: Axes, rows: list[dict], names: list[str], label: str) -> None:
    """Draw columns against tokens, with standard errors, and each one's last value at its end; its name if several."""
    ends = []
    for number, name in enumerate(names):
        color, line = LOOKS[number % len(LOOKS)]
        known = [(row["tokens"], row[name], row[f"{name}_se"] or 0.0) for row in rows if name in row]
        tokens, values, errors = (list(column) for column in zip(*known, strict=True))
        style = {"color": color, "linestyle": line, "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
        axes.errorbar(tokens, values, errors, capsize=3, **style)
        text = f"{name} {values[-1]:.3f}" if len(names) > 1 else f"{values[-1]:.3f}"
        ends.append((values[-1], tokens[-1], text, color))
    first, last = (of(row["tokens"] for row in rows if row["tokens"]) for of in (min, max))
    axes.set_xscale("symlog", linthresh=first, linscale=0.5)  # symlog can show 0 tokens, log cannot
    ticks = SymmetricalLogLocator(base=10, linthresh=first, subs=(1, 2, 5) if last < 100 * first else (1,))
    axes.set_xticks([tick for tick in ticks.tick_values(0, last) if tick == 0 or first <= tick <= last])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set(xlabel="tokens seen (log scale)", ylabel=label)
    # Label the ends from the lowest one up, each above the label before.
    free = -math.inf
    for value, token, text, color in sorted(ends):
        height = 72 / axes.figure.dpi * axes.transData.transform((token, value))[1]
        free = max(free, height)
        plots.label_end(axes, [token], [value], text, color, free - height)
        free += LABEL_POINTS


@exit_with_status
def main(argv: list[str]) -> None:
    parser = tool_parser("suite", __doc__)
    parser.add_argument("--out", type=Path, default=Path("suite"), help="the folder to write (suite)")
    parser.add_argument(
        "--tasks", type=Path, nargs="+", default=[], metavar="FILE", help="results of lm_eval for the checkpoints"
    )
    args = parser.parse_args(argv)
    record = read_json(MODEL)
    names = record.get(KEPT_WEIGHTS)
    if not names:
        raise ParamsError(f"{MODEL}: no checkpoints are kept; set train.keep_weights_at and run `dvc repro`")
    if record["best"]["step"] == 0 and list(names) == [step_name(0)]:
        found = "the best weights and the kept checkpoint are both of 0 tokens, so there is no curve"
        raise ParamsError(f"{MODEL}: {found}; add numbers above 0 to train.keep_weights_at and run `dvc repro`")
    refuse_changed_inputs()
    rows = [row_of(MODELS, EVALUATION)]
    for number, name in enumerate(names, 1):
        print(f"{number} of {len(names)}: {name}", flush=True)
        evaluate(MODELS / KEPT_WEIGHTS / name, args.out / name)
        row = row_of(MODELS / KEPT_WEIGHTS / name, args.out / name)
        rows += [row] if row["weights"] != rows[0]["weights"] else []
    rows.sort(key=lambda row: row["step"])
    tasks = add_accuracies(rows, args.tasks)
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    write_csv(args.out / "suite.csv", header, cells)
    print("\n".join(table(header, [[f"{x:.4f}" if type(x) is float else x for x in row] for row in cells])))
    panels = [lambda axes: draw(axes, rows, ["bits_per_byte"], "bits per byte")]
    accuracy = "accuracy" if len(tasks) > 1 else f"accuracy in {''.join(tasks)}"
    panels += [lambda axes: draw(axes, rows, tasks, accuracy)] if tasks else []
    figure = plots.figure_of(*panels, size=(7.5, 3.6 * len(panels)), title="Checkpoints of the run, ± standard error")
    plots.save_png(figure, args.out / "suite.png")
    print(f"written: {args.out}/suite.csv, {args.out}/suite.png")
