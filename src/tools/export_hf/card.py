"""Write the model card of an exported folder, README.md, from the records of the run."""

import argparse
import math
import re
from pathlib import Path

import yaml

from lm.core.errors import IntegrityError
from lm.core.files import read_json
from lm.core.git import git
from lm.model.gemma3 import ModelConfig, count_parameters
from lm.model.weights import WEIGHTS, WEIGHTS_DIGITS
from tools.common import paths
from tools.common.reports import render, table

TEMPLATE = Path(__file__).with_name("card.md.j2")
# What decides a run, in git, and a metric of it.
TRACKED = (
    paths.PIPELINE,
    paths.LOCK,
    paths.PARAMS,
    paths.PRESETS,
    paths.SOURCES,
    paths.TRAIN_METRICS,
    "requirements.txt",
    "requirements/bits.txt",
    "src",
)


def read_figures(args: argparse.Namespace, record: dict) -> dict[str, dict]:
    """Return the records around a model.json by name; a token file or a text without its record gives {}.

    Raise IntegrityError if the evaluation is of another model, or a token file is not the one of the training.
    """
    figures = {
        "evaluation": read_json(args.evaluation / "details.json"),
        "audit": read_json(args.audit / "details.json"),
    }
    evaluated = figures["evaluation"].get("weights_sha256")
    best = record["best"]["sha256"][:WEIGHTS_DIGITS]
    if evaluated != best:
        advice = "name its --evaluation, which `dvc repro` or, of a checkpoint, `python src suite` makes"
        raise IntegrityError(f"{args.evaluation}/details.json: is about the model {evaluated}, not {best}; {advice}")

    for split in ("train", "validation"):
        sidecar = args.processed_datasets / f"{split}.json"
        figures[split] = read_json_if_there(sidecar)
        trained_on = record["data_sha256"][split]
        if figures[split].get("sha256", trained_on) != trained_on:
            raise IntegrityError(
                f"{sidecar}: describes other tokens than those that the model was trained on; run `dvc repro`"
            )

    figures["manifest"] = read_json_if_there(args.raw / paths.MANIFEST.name)
    return figures


def read_json_if_there(path: Path) -> dict:
    """Return the content of a JSON file; {} without the file."""
    return read_json(path) if path.exists() else {}


def model_card(record: dict, params: dict, figures: dict[str, dict], eot_id: int, license_id: str | None) -> str:
    """Return README.md: how to use the model, its loss, data and training, how to make it again, its limits."""
    # Find the run that made the weights: they are its best ones, or one of its checkpoints.
    run = run_of(record)
    is_checkpoint = run is not record
    folder = Path("early") if is_checkpoint else paths.MODELS

    # Describe its loss, its text and its files.
    config = ModelConfig(**record["config"])
    evaluation = figures["evaluation"]
    evaluation_shown = evaluation | {"held_out": None} if is_checkpoint else evaluation
    source = params["data.source"]
    sources = figures["manifest"].get("sources", {})
    hashes = {
        "text of the training split": figures["train"].get("source", {}).get("text_sha256"),
        paths.TOKENIZER_META: record["tokenizer_sha256"],
        paths.TRAIN: record["data_sha256"]["train"],
        paths.VALIDATION: record["data_sha256"]["validation"],
        folder / WEIGHTS: record["best"]["sha256"],
    }
    hash_rows = [(f"`{path}`", sha256) for path, sha256 in hashes.items() if sha256]

    # Describe what computed it.
    described = []
    for segment in record["segments"]:
        settings = [f"{name} {value}" for name, value in segment.items() if name != "from_step"]
        described.append(", ".join(settings))
    numerics = {segment.get("numerics") for segment in record["segments"]}

    lines = render(
        TEMPLATE,
        head=card_head(f"{params['model.name']}-{source}", source, sources, evaluation, license_id),
        model_name=params["model.name"],
        source=source,
        config=config,
        record=record,
        eot_id=eot_id,
        run=run,
        weights=folder / WEIGHTS,
        parameters=count_parameters(config)["total"],
        figures=figures,
        evaluation=evaluation,
        audit=figures["audit"],
        loss_table=loss_table(evaluation_shown),
        origins=[origin(name, source) for name, source in sources.items()],
        computed="; then ".join(dict.fromkeys(described)),
        is_exact=numerics == {"exact"},
        tested_on=tested_on(),
        hashes=table(("file", "SHA-256"), hash_rows),
        params=yaml.safe_dump(params, sort_keys=False, allow_unicode=True).splitlines(),
        **committed(run),
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


def loss_table(evaluation: dict) -> list[str]:
    """Return the loss of the whole text, of its sections, and of the sources of a mixture."""
    rows = {
        "whole validation text": evaluation,
        "documents that share little with the training text": evaluation.get("clean"),
        "tokens that did not select the weights": evaluation.get("held_out"),
    }
    for name, figures in evaluation.get("sources", {}).items():
        rows[f"source `{name}`"] = figures

    cells = []
    for name, each in rows.items():
        if each:
            loss = decimals(each["bits_per_byte"])
            standard_error = decimals(each["bits_per_byte_se"])
            cells.append((name, f"{each['documents']:,}", loss, standard_error))
    return table(("text", "documents", "bits per byte", "standard error"), cells)


def origin(name: str, manifest: dict) -> str:
    """Return where the text of a source comes from, and its licence if the manifest has it; never a path."""
    clauses = [manifest.get("package") or manifest.get("repo") or f"of kind {manifest['kind']}"]
    for key in ("commit", "licence"):
        if manifest.get(key):
            clauses.append(f"{key} {manifest[key]}")
    return f"`{name}`: {', '.join(clauses)}"


def committed(run: dict) -> dict[str, str | None]:
    """Return the commit whose files made a run, and where to clone it from; None where this is not known.

    The commit is known if git has the files of TRACKED as they are here, and its metrics are those of the run.
    """
    metrics = read_json_if_there(paths.TRAIN_METRICS)
    is_ours = bool(run) and metrics.get("val_loss", math.nan) == run["best"]["val_loss"]
    is_committed = is_ours and git("status", "--porcelain", "--", *map(str, TRACKED)) == ""
    if not is_committed:
        return {"commit": None, "repository": None}
    origin_url = git("remote", "get-url", "origin") or ""
    return {"commit": git("rev-parse", "HEAD"), "repository": public_url(origin_url)}


def tested_on() -> list[str]:
    """Return the processors on which the test run of `python src prove` had the committed bits; [] without a record."""
    if not paths.GOLDEN.exists():
        return []
    golden = read_json(paths.GOLDEN)
    processors = []
    for seen in golden["seen_on"]:
        weights_by_step = golden[seen["run"]]["weights"]
        *_, committed_weights = weights_by_step.values()
        if seen["weights"] == committed_weights:
            how = "" if seen["how"] == "natively" else f" {seen['how']}"
            processors.append(f"{seen['processor']}{how}")
    return list(dict.fromkeys(processors))


def public_url(url: str) -> str | None:
    """Return an https address without user name and token, or one of ssh; None for any other, such as a local path."""
    match = re.fullmatch(r"https://(?:[^/@]*@)?([^@]+)", url)
    if match:
        return f"https://{match[1]}"
    is_ssh = re.fullmatch(r"(ssh://)?git@[\w.-]+[:/][\w./~-]+", url)
    return url if is_ssh else None


def decimals(value: float | None) -> str:
    """Return a number with four decimals; an empty text without one."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.4f}"
