"""Write one page about the run in the workspace, finished or not: curves, samples, metrics, parameters, hashes.

    python src report
    python src report elsewhere/mine.html

The page is one file without scripts that needs no network. It leaves out an evaluation of other weights than those in
data/models, as during the next run, and says so.
"""

import base64
import json
from pathlib import Path

import jinja2

from lm import plots
from lm.core.errors import EnvironmentFailure, IntegrityError, exit_with_status
from lm.core.files import read_json, sha256_file, write_text
from lm.core.git import git
from lm.core.params import read_yaml
from tools.record import paths
from tools.record.arguments import tool_parser
from tools.record.committed import changes_from_commit
from tools.record.environment import versions
from tools.record.lock import read_lock, read_timing, wrong_outputs
from tools.record.parameters import Difference, flatten, selected_presets

PICTURES = {  # drawn by the stage plot → caption
    "loss_by_position": "The loss falls as long as more context helps. Where it is flat, longer windows do not help.",
    "contamination": "If points fall to the right, text seen in training is easier.",
}


def read(path: Path) -> dict:
    """Return a JSON record, {} if it does not exist yet."""
    return read_json(path) if path.exists() else {}


def committed_curve(name: str) -> dict[str, list[float]]:
    """Return the columns of the committed plots/NAME.csv, or {} if it is missing, damaged or unchanged."""
    path = paths.PLOTS / f"{name}.csv"
    try:
        committed = plots.parse_csv(git("show", f"HEAD:./{path}") or "")
    except (EnvironmentFailure, TypeError, ValueError):
        return {}
    return {} if committed == curve(name) else committed


def curve(name: str) -> dict[str, list[float]]:
    """Return the columns of plots/NAME.csv, or {} if the file is missing or empty."""
    path = paths.PLOTS / f"{name}.csv"
    return plots.read_csv(path) if path.exists() else {}


def gather() -> dict:
    """Return the variables of page.html.j2."""
    params = read_yaml(paths.PARAMS)
    presets = read_yaml(paths.PRESETS) | read_yaml(paths.SOURCES)
    model = read(paths.MODEL)
    evaluation = read(paths.EVALUATION_DETAILS)

    is_evaluated = is_evaluation_of(evaluation, model)
    if not is_evaluated:
        evaluation = {}

    # The tables of metrics, those of later stages first.
    tables = {}
    if is_evaluated:
        tables[str(paths.EVAL_METRICS)] = read(paths.EVAL_METRICS)
    tables[str(paths.TRAIN_METRICS)] = read(paths.TRAIN_METRICS)
    tables[str(paths.DATA_METRICS)] = read(paths.DATA_METRICS)
    tables[str(paths.EVALUATION_DETAILS)] = evaluation
    tables[f"{paths.MODEL}, training"] = model.get("training", {})

    # A run ends with a validation, whose tokens are in model.json; it may end before train.max_tokens.
    validation = curve("validation")
    tokens_at_end = model.get("last", {}).get("tokens_seen")
    is_trained = bool(validation) and validation["tokens"][-1] == tokens_at_end

    chosen = [name.partition(".")[2] for name in selected_presets(params, presets)]
    return {
        "title": " · ".join(["ReproLM", *(name for name in chosen if name != "none")]),
        **comparison(is_evaluated),
        "evaluation": evaluation,
        "validation": validation,
        "is_trained": is_trained,
        "tokens_seen": read(paths.TRAIN_METRICS).get("tokens_seen"),
        "max_tokens": params["train"]["max_tokens"],
        "train_seconds": read_timing(model).get("train_seconds"),
        "pictures": pictures(is_evaluated),
        "metrics": {title: [*flatten(figures).items()] for title, figures in tables.items() if figures},
        "samples": read(paths.SAMPLES) if is_evaluated else {},
        "parameters": parameters(params, presets),
        "hashes": hashes(model),
        "segments": model.get("segments", []),
        "versions": [("commit", commit()), *versions().items()],
    }


def is_evaluation_of(evaluation: dict, model: dict) -> bool:
    """Return whether an evaluation names the hash of the model's weights; during a run there are none."""
    if not evaluation:
        return False
    best = model.get("best", {}).get("sha256", "")
    stale = read_lock().stale_stages if paths.LOCK.exists() else []
    return best.startswith(evaluation["weights_sha256"]) and "eval" not in stale


def comparison(is_evaluated: bool) -> dict:
    """Return how the run differs from the committed one: a sentence, and rows of parameters and metrics."""
    unfinished = {"comparison": "Not compared with the committed run: this one is not finished.", "differences": {}}
    if not is_evaluated:
        return unfinished
    try:
        if wrong := wrong_outputs(read_lock()):
            raise IntegrityError(f"{', '.join(wrong)}: not what dvc.lock records; run `python src verify`")
        found = changes_from_commit()
    except IntegrityError as error:
        return {"comparison": f"Not compared with the committed run: {error}.", "differences": {}}
    differences = {}
    if found.parameters:
        differences["parameter"] = [difference_row(each) for each in found.parameters]
    if found.metrics:
        differences["metric"] = [difference_row(each) for each in found.metrics]
    sentence = f"{found.headline} {found.explanation}" if found.explanation else found.headline
    return {"comparison": sentence, "differences": differences}


def difference_row(found: Difference) -> tuple:
    """Return name, committed value, value now, and the change of a number."""
    if is_number(found.committed) and is_number(found.now):
        return found.name, found.committed, found.now, found.now - found.committed
    return found.name, str(found.committed), str(found.now), ""


def is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pictures(is_evaluated: bool) -> list[dict]:
    """Draw the curves of training so far, and read the pictures of the evaluation if it is of this model."""
    train = curve("training")
    validation = curve("validation")
    pictures = []
    if train or validation:
        committed = committed_curve("training"), committed_curve("validation")
        png = plots.to_png(plots.training_figure(train, validation, committed))
        caption = "Thin: mean between two log lines. Thick: smoothed. Dashed: validation, which selects the best model."
        if any(committed):
            caption += " Grey: the committed run."
        pictures.append(("training", png, caption))
    if train:
        png = plots.to_png(plots.optimization_figure(train))
        pictures.append(("optimization", png, "The gradient norm is measured before clipping."))
    for name, caption in PICTURES.items():
        path = paths.PLOTS / f"{name}.png"
        if is_evaluated and path.exists():
            pictures.append((name, path.read_bytes(), caption))
    return [
        {"name": name, "base64": base64.b64encode(png).decode(), "caption": caption} for name, png, caption in pictures
    ]


def parameters(params: dict, presets: dict) -> list[tuple[str, str]]:
    """Return the chosen parameters as JSON, with the recorded value of those that differ from dvc.lock."""
    recorded = read_lock().params if paths.LOCK.exists() else {}
    chosen = flatten(params) | flatten(selected_presets(params, presets))
    rows = []
    for name, value in chosen.items():
        text = json.dumps(value, ensure_ascii=False)
        if name in recorded and recorded[name] != value:
            text += f", was {recorded[name]}"
        rows.append((name, text))
    return rows


def hashes(model: dict) -> list[tuple[str, str]]:
    """Return the SHA-256 of each file that the model was made from, as model.json and the sidecars record them."""
    train = read(paths.TRAIN_SIDECAR)
    validation = read(paths.VALIDATION_SIDECAR)
    chain = {
        paths.MANIFEST: sha256_file(paths.MANIFEST) if paths.MANIFEST.exists() else None,
        paths.TOKENIZER_META: train.get("tokenizer", {}).get("sha256"),
        paths.TRAIN: train.get("sha256"),
        paths.VALIDATION: validation.get("sha256"),
        "best weights": model.get("best", {}).get("sha256"),
        "last weights": model.get("last", {}).get("sha256"),
        paths.LOCK: sha256_file(paths.LOCK) if paths.LOCK.exists() else None,
    }
    return [(str(name), sha256 or "does not exist yet") for name, sha256 in chain.items()]


def commit() -> str:
    """Return HEAD and the number of files that differ from it."""
    try:
        head = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain")
    except EnvironmentFailure as error:
        return f"unknown: {error}"
    if head is None or changes is None:
        return "unknown: this folder is not in a git repository with a commit"
    num_files = len(changes.splitlines())
    return f"{head}, {num_files} files differ" if num_files else f"{head}, clean"


def readable(value) -> str:
    """Return a figure with few digits; other values as text."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return " to ".join(map(readable, value))
    return "–" if value is None else str(value)


@exit_with_status
def main(argv: list[str]) -> None:
    """Write the page."""
    parser = tool_parser("report", __doc__)
    parser.add_argument("out", type=Path, nargs="?", default="report.html", help="the page (report.html)")
    out = parser.parse_args(argv).out
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["readable"] = readable
    write_text(out, environment.get_template("page.html.j2").render(gather()))
    print(f"{out}: {out.stat().st_size:,} bytes; open it in a browser")
