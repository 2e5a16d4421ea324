"""Write the model card of an exported folder, README.md, from the records of the run."""

import argparse
import math
import re
import subprocess
from pathlib import Path

import yaml

from lm.core.errors import IntegrityError
from lm.core.files import read_json, sha256_file
from lm.model.gemma3 import ModelConfig, count_parameters
from lm.model.weights import WEIGHTS, WEIGHTS_DIGITS
from lm.text.documents import parts_of
from tools.common import paths
from tools.common.tables import render, table

TEMPLATE = Path(__file__).with_name("card.md.j2")
# What decides a run, in git, and a metric of it.
TRACKED = (paths.PIPELINE, paths.LOCK, paths.PARAMS, paths.PRESETS, paths.TRAIN_METRICS)
TRACKED += ("requirements.txt", "requirements/bits.txt", "src")
# Sections of the evaluation by their name in the card.
SECTIONS = {
    "clean": "documents that share little with the training text",
    "unseen": "tokens that did not select the weights",
}


def read_figures(args: argparse.Namespace, record: dict) -> dict[str, dict]:
    """Return the records around a model.json by name; a token file or a text without its record gives {}.

    Raise IntegrityError if a record is about another model or other data.
    """
    evaluation, audit = (folder / paths.EVALUATION_DETAILS.name for folder in (args.evaluation, args.audit))
    figures = {"evaluation": read_json(evaluation), "audit": read_json(audit), "manifest": {}}
    found, expected = figures["evaluation"].get("weights_sha256"), record["best"]["sha256"][:WEIGHTS_DIGITS]
    refuse_other(evaluation, "model", found, expected)
    for path in (paths.TRAIN_SIDECAR, paths.VALIDATION_SIDECAR):
        split, sidecar = path.stem, args.processed_datasets / path.name
        figures[split] = read_json(sidecar) if sidecar.exists() else {}
        if figures[split]:
            refuse_other(sidecar, "tokens", figures[split]["sha256"], record["data_sha256"][split])
            refuse_other(audit, f"{split} tokens", figures["audit"][split]["tokens"], figures[split]["tokens"])
    manifest = args.raw / paths.MANIFEST.name
    if manifest.exists() and figures["train"]:
        refuse_other(manifest, "text", sha256_file(manifest), figures["train"]["source"]["manifest_sha256"])
        figures["manifest"] = read_json(manifest)
    return figures


def refuse_other(path: Path, what: str, found, expected) -> None:
    """Raise IntegrityError if the record `path` is about another model, text or tokens than the exported one."""
    if found != expected:
        raise IntegrityError(f"{path}: is about the {what} {found}, not {expected}; run `dvc repro`")


def model_card(record: dict, params: dict, figures: dict[str, dict], eot_id: int, license_id: str | None) -> str:
    """Return README.md: how to use the model, its loss, data and training, how to make it again, its limits."""
    config, evaluation = ModelConfig(**record["config"]), figures["evaluation"]
    name, source = params["model.name"], params["data.source"]
    manifest = figures["manifest"]
    is_portable = {each.get("numerics") for each in record["segments"]} == {"portable"}
    origins = [origin(part, each) for part, each in parts_of(manifest).items()] if manifest else []
    return "\n".join(render(
        TEMPLATE, head=card_head(f"{name}-{source}", source, manifest, evaluation, license_id),
        model_name=name, source=source, config=config, record=record, eot_id=eot_id, weights=WEIGHTS,
        parameters=count_parameters(config)["total"], evaluation=evaluation, audit=figures["audit"],
        loss_table=loss_table(evaluation),
        origins=origins, data_table=data_table(figures), is_portable=is_portable,
        training_table=training_table(record, params["train"]), hashes=hash_table(record, figures), **committed(record),
        params=yaml.safe_dump(params, sort_keys=False, allow_unicode=True).splitlines(),
    )) + "\n"  # fmt: skip


def card_head(name: str, source: str, manifest: dict, evaluation: dict, license_id: str | None) -> list[str]:
    """Return the lines of YAML that the hub reads. The licence is that of the weights, which no record holds."""
    repos = sorted({part["repo"] for part in parts_of(manifest).values() if "repo" in part}) if manifest else []
    metric = {"type": "bits_per_byte", "name": "bits per byte", "value": round(evaluation["bits_per_byte"], 4)}
    result = {
        "task": {"type": "text-generation"},
        "dataset": {"name": source, "type": repos[0] if len(repos) == 1 else source, "split": "validation"},
        "metrics": [metric],
    }
    head = {"license": license_id, "library_name": "transformers", "pipeline_tag": "text-generation"}
    head |= {"tags": ["gemma3", "pretrained-from-scratch", "dvc"], "datasets": repos}
    head |= {"model-index": [{"name": name, "results": [result]}]}
    return yaml.safe_dump({key: value for key, value in head.items() if value}, sort_keys=False).splitlines()


def loss_table(evaluation: dict) -> list[str]:
    """Return the loss of the whole text, of its sections, and of the parts of a mixture."""
    rows = {"whole validation text": evaluation}
    rows |= {name: evaluation[section] for section, name in SECTIONS.items() if section in evaluation}
    rows |= {f"part `{name}`": figures for name, figures in evaluation.get("parts", {}).items()}
    header = ("text", "documents", "bits per byte", "standard error")
    return table(header, [
        (name, f"{each['documents']:,}", *(decimals(each[key]) for key in ("bits_per_byte", "bits_per_byte_se")))
        for name, each in rows.items()
    ])  # fmt: skip


def data_table(figures: dict[str, dict]) -> list[str]:
    """Return the size of both splits as far as their token files are here; no line without them."""
    names = ("documents", "utf8_bytes", "tokens")
    rows = [(split, *(f"{figures[split][name]:,}" for name in names))
            for split in ("train", "validation") if figures[split]]  # fmt: skip
    return table(("split", "documents", "UTF-8 bytes", "tokens"), rows) if rows else []


def training_table(record: dict, train: dict) -> list[str]:
    """Return how the weights were trained; `train` is the section of params.yaml."""
    training, best = record.get("training", {}), record["best"]
    segments = [{name: value for name, value in each.items() if name != "from_step"} for each in record["segments"]]
    described = [", ".join(f"{name} {value}" for name, value in each.items()) for each in segments]
    rows = {
        "tokens seen": f"{best['tokens_seen']:,}", "steps": f"{best['step']:,} of {training.get('steps', 0):,}",
        "passes over the training text, whole run": decimals(training.get("epochs"), 2),
        "tokens per step": f"{train['batch_tokens']:,}", "tokens of context": f"{record['seq_len']:,}",
        "optimizer": f"{train['optimizer']}, peak learning rate {train['peak_lr']}, {train['schedule']}",
        "computed with": "; then ".join(dict.fromkeys(described)),
    }  # fmt: skip
    return table(("setting", "value"), [row for row in rows.items() if row[1]])


def hash_table(record: dict, figures: dict[str, dict]) -> list[str]:
    """Return the SHA-256 of what the model was made from, and of its weights."""
    data = record["data_sha256"]
    text = figures["train"].get("source", {}).get("manifest_sha256")
    rows = {paths.MANIFEST: text, paths.TOKENIZER_META: record["tokenizer_sha256"], paths.TRAIN: data["train"]}
    rows |= {paths.VALIDATION: data["validation"], paths.MODELS / WEIGHTS: record["best"]["sha256"]}
    return table(("file", "SHA-256"), [(f"`{path}`", sha256) for path, sha256 in rows.items() if sha256])


def origin(name: str, manifest: dict) -> str:
    """Return where the text of a source comes from, and its licence if the manifest has it; never a path."""
    clauses = [manifest.get("package") or manifest.get("repo") or f"of kind {manifest['kind']}"]
    clauses += [f"commit {manifest['commit']}"] if "commit" in manifest else []
    return f"`{name}`: " + ", ".join(clauses + [f"licence {each}" for each in [manifest.get("licence")] if each])


def committed(record: dict) -> dict[str, str | None]:
    """Return the commit whose files made the model, and where to clone it from; None where this is not known.

    The commit is known if git has the files of TRACKED as they are here, and its metrics are those of the model.
    """
    metrics = read_json(paths.TRAIN_METRICS) if paths.TRAIN_METRICS.exists() else {}
    is_ours = metrics.get("val_loss", math.nan) == record["best"]["val_loss"]
    if not (is_ours and git("status", "--porcelain", "--", *map(str, TRACKED)) == ""):
        return {"commit": None, "repository": None}
    return {"commit": git("rev-parse", "HEAD"), "repository": public_url(git("remote", "get-url", "origin") or "")}


def git(*words: str) -> str | None:
    """Return what a command of git prints, or None if it fails."""
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def public_url(url: str) -> str | None:
    """Return an https address without user name and token, or one of ssh; None for any other, such as a local path."""
    if match := re.fullmatch(r"https://(?:[^/@]*@)?([^@]+)", url):
        return f"https://{match[1]}"
    return url if re.fullmatch(r"(ssh://)?git@[\w.-]+[:/][\w./~-]+", url) else None


def decimals(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` decimals; an empty text without one."""
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
