"""Evaluate each stored checkpoint of a validation: the loss against tokens as a table and as a picture.

    dvc exp run && python src suite
    python src suite --tasks lm_eval-step-*.json

Writes the weights of each checkpoint of the run in .runs into --out/weights/NAME, a folder like data/models. Runs the
stage eval on it into --out/NAME, a folder like data/evaluation, which `python src export_hf DIR --models …
--evaluation …` reads. A checkpoint that was evaluated with the same inputs, as dvc.lock records them, is not evaluated
again. If an input of eval changed since, `dvc repro eval` has to run first, so that all rows are evaluated alike. The
table and suite.csv also have the best weights of the run. --tasks adds the accuracies in files that
`python src lm_eval --models suite/weights/*` wrote.
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
from lm.core.paths import RUNS
from lm.model.weights import RECORD, WEIGHTS_DIGITS
from lm.train.checkpoints import Checkpoint, list_checkpoints, load_checkpoint
from tools.common.arguments import tool_parser
from tools.common.lock import read_lock
from tools.common.models import write_weights
from tools.common.paths import AUDIT, CURVE, EVALUATION, LOCK, MODEL, MODELS, TOKENIZER, TRAIN, VALIDATION
from tools.common.reports import table
from tools.common.runs import read_curve

LOOKS = ((plots.BLUE, "-"), (plots.ORANGE, "--"), (plots.GREY, ":"))
MARKERS = "os^D"
LABEL_POINTS = 13  # height of a label


def refuse_changed_inputs() -> None:
    """Raise IntegrityError if parameters, code or data of the stage eval are not those that dvc.lock records."""
    from dvc.repo import Repo  # takes a second to import

    from tools.common.runs import explain_failures

    with explain_failures(), Repo(".") as repo:
        changes = repo.status(targets=["eval"])
    if changes:
        found = "inputs or outputs of the stage eval changed since it ran (`dvc status eval` lists them)"
        raise IntegrityError(f"{LOCK}: {found}; run `dvc repro eval`, or undo the change")


def inputs_of(models: Path) -> dict:
    """Return what decides an evaluation: the weights and, from dvc.lock, the other inputs of the stage eval."""
    stage = read_lock().stages["eval"]
    hashes = {dep["path"]: dep["md5"] for dep in stage["deps"] if dep["path"] != str(MODELS)}
    return {"weights": read_json(models / RECORD)["best"]["sha256"], "hashes": hashes, "params": stage["params"]}


def evaluate(models: Path, evaluation: Path) -> None:
    """Run the stage eval on a checkpoint, unless it has; raise UserError with its exit code if it fails."""
    inputs = inputs_of(models)
    recorded = evaluation / "inputs.json"
    if recorded.exists() and read_json(recorded) == inputs:
        return
    with tempfile.TemporaryDirectory() as ignored:
        flags = {
            "models": models,
            "train": TRAIN,
            "validation": VALIDATION,
            "tokenizer": TOKENIZER,
            "audit": AUDIT,
            "evaluation": evaluation,
            "metrics": ignored,
            "plots": ignored,
        }
        arguments = [f"--{name}={path}" for name, path in flags.items()]
        status = subprocess.run([sys.executable, "src/eval.py", *arguments], stdout=subprocess.DEVNULL).returncode
    if status != 0:
        error = UserError(f"{models}: cannot be evaluated")
        error.exit_code = max(1, status)  # a signal is a negative status
        raise error
    write_json(recorded, inputs)


def row_of(models: Path, evaluation: Path) -> dict:
    """Return a row of the table; raise IntegrityError if the evaluation is of another model."""
    best = read_json(models / RECORD)["best"]
    details = read_json(evaluation / "details.json")
    weights = best["sha256"][:WEIGHTS_DIGITS]
    if details["weights_sha256"] != weights:
        raise IntegrityError(f"{evaluation}: is about other weights than {models} has; run `dvc repro eval`")
    return {
        "weights": weights,
        "step": best["step"],
        "tokens": best["tokens_seen"],
        "nats_per_token": details["nats_per_token"],
        "bits_per_byte": details["bits_per_byte"],
        "bits_per_byte_se": details["bits_per_byte_se"],
    }


def add_accuracies(rows: list[dict], files: list[Path]) -> list[str]:
    """Add accuracy and standard error of each task to the rows of the weights; return the names of the tasks.

    Raise IntegrityError if no row has the weights of a file.
    """
    names = []
    for path in files:
        figures = read_json(path, "name files that `python src lm_eval` wrote")
        sha256 = figures["model"]["weights_sha256"]
        found = [row for row in rows if sha256.startswith(row["weights"])]
        if not found:
            raise IntegrityError(f"{path}: is about the weights {sha256}, which are none of this run's; run lm_eval")
        for name, task in figures["tasks"].items():
            accuracy = task["metrics"].get("acc")
            if accuracy is None:
                continue
            row = found[0]
            row[name] = accuracy["value"]
            row[f"{name}_se"] = accuracy["stderr"]
            if name not in names:
                names.append(name)
    return names


def draw(axes: Axes, rows: list[dict], names: list[str], label: str) -> None:
    """Draw columns against tokens, with standard errors, and each one's last value at its end; its name if several."""
    ends = []
    for number, name in enumerate(names):
        known = [row for row in rows if name in row]
        tokens = [row["tokens"] for row in known]
        values = [row[name] for row in known]
        errors = [row[f"{name}_se"] or 0.0 for row in known]
        color, line = LOOKS[number % len(LOOKS)]
        marker = MARKERS[number % len(MARKERS)]
        axes.errorbar(tokens, values, errors, capsize=3, color=color, linestyle=line, marker=marker, markersize=4)
        value_text = f"{values[-1]:.3f}"
        text = f"{name} {value_text}" if len(names) > 1 else value_text
        ends.append((values[-1], tokens[-1], text, color))

    set_token_axis(axes, [row["tokens"] for row in rows if row["tokens"] > 0])
    axes.set_ylabel(label)
    label_ends(axes, ends)


def set_token_axis(axes: Axes, tokens: list[int]) -> None:
    """Show 0 and the range of these numbers of tokens, all above 0, on a logarithmic axis."""
    first = min(tokens)
    last = max(tokens)
    axes.set_xscale("symlog", linthresh=first, linscale=0.5)  # symlog can show 0 tokens, log cannot
    subs = (1, 2, 5) if last < 100 * first else (1,)
    ticks = SymmetricalLogLocator(base=10, linthresh=first, subs=subs).tick_values(0, last)
    axes.set_xticks([tick for tick in ticks if tick == 0 or first <= tick <= last])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens seen (log scale)")


def label_ends(axes: Axes, ends: list[tuple[float, int, str, str]]) -> None:
    """Write a text at each end (value, tokens, text, color), from the lowest one up, each above the one before."""
    free = -math.inf  # the height above the last label, in points
    for value, token, text, color in sorted(ends):
        height = 72 / axes.figure.dpi * axes.transData.transform((token, value))[1]
        free = max(free, height)
        plots.label_end(axes, [token], [value], text, color, free - height)
        free += LABEL_POINTS


def stored_checkpoints(run: Path) -> list[Checkpoint]:
    """Return the stored checkpoints of a run's validations; raise ParamsError if there are none."""
    validations = read_curve(CURVE)
    found = [checkpoint for checkpoint in list_checkpoints(run) if checkpoint.step in validations]
    if not found:
        remedy = "run `python src verify --retrain STEP`, which stores one"
        raise ParamsError(f"{run}: has no checkpoint of a validation; {remedy}")
    return found


@exit_with_status
def main(argv: list[str]) -> None:
    parser = tool_parser("suite", __doc__)
    parser.add_argument("--out", type=Path, default=Path("suite"), help="the folder to write (suite)")
    tasks_help = "results of lm_eval for the checkpoints"
    parser.add_argument("--tasks", type=Path, nargs="+", default=[], metavar="FILE", help=tasks_help)
    args = parser.parse_args(argv)
    refuse_changed_inputs()
    model = read_json(MODEL)
    checkpoints = stored_checkpoints(RUNS / model["fingerprint"])

    # Evaluate each checkpoint. The best weights have a row already, by the stage eval.
    rows = [row_of(MODELS, EVALUATION)]
    for number, checkpoint in enumerate(checkpoints, 1):
        name = f"step-{checkpoint.step:09d}"
        print(f"{number} of {len(checkpoints)}: {name}", flush=True)
        models = args.out / "weights" / name
        write_weights(models, load_checkpoint(checkpoint), model)
        evaluate(models, args.out / name)
        row = row_of(models, args.out / name)
        if row["weights"] != rows[0]["weights"]:
            rows.append(row)
    rows.sort(key=lambda row: row["step"])
    tasks = add_accuracies(rows, args.tasks)

    # Write the table.
    header = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name, "") for name in header] for row in rows]
    write_csv(args.out / "suite.csv", header, cells)
    shown = [[f"{cell:.4f}" if type(cell) is float else cell for cell in row] for row in cells]
    print("\n".join(table(header, shown)))

    # Draw the loss, and below it the accuracies if there are any.
    panels = [lambda axes: draw(axes, rows, ["bits_per_byte"], "bits per byte")]
    if tasks:
        label = "accuracy" if len(tasks) > 1 else f"accuracy in {tasks[0]}"
        panels.append(lambda axes: draw(axes, rows, tasks, label))
    figure = plots.figure_of(*panels, size=(7.5, 3.6 * len(panels)), title="Checkpoints of the run, ± standard error")
    plots.save_png(figure, args.out / "suite.png")
    print(f"written: {args.out}/suite.csv, {args.out}/suite.png")
