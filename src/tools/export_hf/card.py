"""Write the model card of an exported folder, README.md, from the records of the run."""

from pathlib import Path

import jinja2
import yaml

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from lm.evaluate.documents import describe_seen
from lm.model.gemma3 import ModelConfig, count_parameters
from lm.model.weights import WEIGHTS, WEIGHTS_DIGITS
from tools.record import paths

TEMPLATE = Path(__file__).with_name("card.md.j2")
DECIDES = ("*.yaml", "requirements*", "dvc.lock", "metrics", "src")  # what decides a run, and its metrics
# Where the same parameters give the same weights.
EXACT = "any processor, for any number of threads"
FAST = "the same device with the same versions; elsewhere the score is about the same"


def read_figures(evaluation: Path, record: dict) -> dict[str, dict]:
    """Return the records around a model.json by name; a token file or a text without its record gives {}.

    Raise IntegrityError if the evaluation is of another model, or a token file is not that of the training.
    """
    figures = {
        "evaluation": read_json(evaluation / "details.json"),
        "audit": read_json(paths.AUDIT / "details.json"),
    }
    evaluated = figures["evaluation"].get("weights_sha256")
    best = record["best"]["sha256"][:WEIGHTS_DIGITS]
    if evaluated != best:
        advice = "name its --evaluation, which the stage eval makes (for a checkpoint: docs/experiments.md#checkpoints)"
        raise IntegrityError(f"{evaluation}/details.json: is about the model {evaluated}, not {best}; {advice}")

    for sidecar in (paths.TRAIN_SIDECAR, paths.VALIDATION_SIDECAR):
        split = sidecar.stem
        figures[split] = read_json_if_there(sidecar)
        trained_on = record["data_sha256"][split]
        if figures[split].get("sha256", trained_on) != trained_on:
            raise IntegrityError(
                f"{sidecar}: describes other tokens than those that the model was trained on; run `dvc repro`"
            )

    figures["manifest"] = read_json_if_there(paths.MANIFEST)
    return figures


def read_json_if_there(path: Path) -> dict:
    """Return the content of a JSON file; {} without the file."""
    return read_json(path) if path.exists() else {}


def model_card(record: dict, params: dict, figures: dict[str, dict], eot_id: int, license_id: str | None) -> str:
    """Return README.md: what the model is, how to load it, its score, data and limits, how to make it again."""
    source = params["data.source"]
    sources = figures["manifest"].get("sources", {})
    run = run_of(record)
    is_checkpoint = run is not record
    numerics = {segment.get("numerics") for segment in record["segments"]}
    lines = render(
        TEMPLATE,
        head=card_head(f"{params['model.name']}-{source}", source, sources, figures["evaluation"], license_id),
        model_name=params["model.name"],
        source=source,
        record=record,
        eot_id=eot_id,
        is_checkpoint=is_checkpoint,
        weights=(Path("early") if is_checkpoint else paths.MODELS) / WEIGHTS,
        parameters=count_parameters(ModelConfig(**record["config"]))["total"],
        figures=figures,
        evaluation=figures["evaluation"],
        audit=figures["audit"],
        seen=describe_seen(figures["evaluation"]),
        origins=[origin(name, source) for name, source in sources.items()],
        where=EXACT if numerics == {"exact"} else FAST,
        params=yaml.safe_dump(params, sort_keys=False, allow_unicode=True).splitlines(),
        commit=commit_of(run),
    )
    return "\n".join(lines) + "\n"


def run_of(record: dict) -> dict:
    """Return the model.json of the run of a checkpoint, {} if it is not that of data/models; else `record`."""
    if "training" in record or "imported" in record:
        return record
    run = read_json_if_there(paths.MODEL)
    return run if record["fingerprint"] == run.get("fingerprint") else {}


def card_head(name: str, source: str, sources: dict, evaluation: dict, license_id: str | None) -> list[str]:
    """Return the lines of YAML that the Hub reads. No record names the licence of the weights."""
    repos = sorted({source["repo"] for source in sources.values() if "repo" in source})
    dataset = repos[0] if len(repos) == 1 else source
    bits_per_byte = round(evaluation["bits_per_byte"], 4)
    result = {
        "task": {"type": "text-generation"},
        "dataset": {"name": source, "type": dataset, "split": "validation"},
        "metrics": [{"type": "bits_per_byte", "name": "bits per byte", "value": bits_per_byte}],
    }
    head = {
        "license": license_id,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["gemma3", "pretrained-from-scratch", "dvc", "reprolm"],
        "datasets": repos,
        "model-index": [{"name": name, "results": [result]}],
    }
    known = {key: value for key, value in head.items() if value}
    return yaml.safe_dump(known, sort_keys=False).splitlines()


def origin(name: str, manifest: dict) -> str:
    """Return where the text of a source comes from, and its licence if the manifest has it; never a path."""
    clauses = [manifest.get("package") or manifest.get("repo") or f"of kind {manifest['kind']}"]
    for key in ("commit", "licence"):
        if manifest.get(key):
            clauses.append(f"{key} {manifest[key]}")
    return f"`{name}`: {', '.join(clauses)}"


def commit_of(run: dict) -> str | None:
    """Return the commit whose files made a run; None where this is not known."""
    metrics = read_json_if_there(paths.TRAIN_METRICS)
    is_of_run = bool(run) and metrics.get("val_loss") == run["best"]["val_loss"]
    if not is_of_run or git("status", "--porcelain", "--", *DECIDES) != "":
        return None
    return git("rev-parse", "HEAD")


def render(template: Path, **values) -> list[str]:
    """Return the lines of a Jinja2 template filled in; a list is shown as its lines. An unknown name is an error."""
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: "\n".join(value) if isinstance(value, list) else value,
    )
    return environment.from_string(template.read_text(encoding="utf-8")).render(values).splitlines()
