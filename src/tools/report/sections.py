"""Gather what the page shows, one function per section; page.html.j2 has the words and the layout.

A record that is missing, or that was made from other files than those present, is left out, and a note says so.
"""

import json
import re
import subprocess
import sys
from functools import partial
from importlib.metadata import version

import numpy as np
import pyarrow.parquet as pq

from lm import plots
from lm.core.files import sha256_file
from lm.core.params import read_yaml
from lm.evaluate.intervals import dominating_documents
from lm.model.gemma3 import ModelConfig, count_parameters, flops_per_token
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import TokenFile, entropy_per_token
from tools.common import paths
from tools.common.parameters import flatten, recorded_params, selected_presets
from tools.common.statistics import bits_per_byte
from tools.common.timing import read_timing
from tools.report.pictures import draw_document_lengths, draw_model, draw_token_lengths, scan
from tools.report.reading import BREAKDOWN, COLUMNS, breakdown
from tools.report.text_tables import describe_example, dropped_rows, vocabulary_tables
from tools.report.workspace import Workspace, curve, picture

SPLITS = {"train": paths.TRAIN_SIDECAR, "validation": paths.VALIDATION_SIDECAR}
METRICS = (paths.EVAL_METRICS, paths.TRAIN_METRICS, paths.DATA_METRICS)


def gather(workspace: Workspace) -> dict:
    """Return the variables of page.html.j2."""
    sections = (verdict, curves, metrics, breakdown, samples, model, data_card, selection, parameters, provenance)
    chosen = [name.partition(".")[2] for name in selected_presets(workspace.params, workspace.presets)]
    title = " · ".join(name for name in chosen if name != "none")
    return {"title": title} | {section.__name__: section(workspace) for section in sections}


def verdict(workspace: Workspace) -> dict:
    """Return how good the model is, or how far the run has come."""
    seconds = read_timing(workspace.get(paths.MODEL)).get("train_seconds")
    return {
        "score": workspace.get(paths.EVALUATION_DETAILS),
        "dominating": dominating(workspace),
        "tokens_seen": workspace.get(paths.TRAIN_METRICS).get("tokens_seen"),
        "took": "" if seconds is None else f", {seconds:,.{0 if seconds >= 10 else 1}f} seconds of training",
        "validation": curve("validation.csv"),
        "max_tokens": workspace.params["train"]["max_tokens"],
        "finished": paths.MODEL in workspace.records,
    }


def dominating(workspace: Workspace) -> list[dict]:
    """Return the documents with a large fraction of the bytes: number, fraction, bits per byte of it and without it."""
    if not (workspace.get(paths.EVALUATION_DETAILS) and paths.DOCUMENT_LOSSES.exists()):
        return []
    table = pq.read_table(paths.DOCUMENT_LOSSES, columns=["nats", "utf8_bytes"])
    nats, sizes = table["nats"].to_numpy(), table["utf8_bytes"].to_numpy()
    documents = []
    for number, fraction in dominating_documents(sizes).items():
        own = np.arange(len(sizes)) == number
        if sizes[~own].any():
            figures = {"own": bits_per_byte(nats[own], sizes[own]), "without": bits_per_byte(nats[~own], sizes[~own])}
            documents.append({"number": number, "fraction": fraction, **figures})
    return documents


def curves(workspace: Workspace) -> dict:
    """Draw losses by tokens and by time, learning rate and gradient norm, and loss by context."""
    train, validation, position = (curve(f"{name}.csv") for name in ("training", "validation", "loss_by_position"))
    timing = read_timing(workspace.get(paths.MODEL))
    meta, pictures = workspace.get(paths.VALIDATION_SIDECAR), []
    floor = entropy_per_token(TokenFile(paths.VALIDATION, np.empty(0), meta)) if meta else None
    losses = partial(plots.draw_losses, train=train, validation=validation, floor=floor)
    if validation:
        pictures.append(picture("Loss by tokens", 3.5, losses))
    if validation and timing.get("tokens", [])[-1:] == validation["tokens"][-1:]:  # not during another run
        pictures.append(picture("Loss by time", 3.5, partial(losses, timing=timing)))
    if train:
        panels = (partial(draw, train=train) for draw in (plots.draw_learning_rate, plots.draw_gradient_norm))
        pictures.append(picture("Learning rate and gradient norm", 3.8, *panels))
    notes = [] if pictures else [f"Left out: curves of training; {paths.PLOTS} has none yet."]
    if position and workspace.get(paths.EVALUATION_DETAILS):
        pictures.append(picture("Loss by context", 3.2, partial(plots.draw_loss_by_position, curve=position)))
    return {"pictures": pictures, "notes": notes + workspace.notes((paths.EVALUATION_DETAILS, "loss by context"))}


def metrics(workspace: Workspace) -> dict:
    """Return every figure, the metrics first."""
    score = dict(workspace.get(paths.EVALUATION_DETAILS))
    for name in ("bits_per_byte_interval", *BREAKDOWN, *COLUMNS):  # the first paragraph and the next section have them
        score.pop(name, None)
    tables = {
        "metrics": {name: value for path in METRICS for name, value in workspace.get(path).items()},
        str(paths.EVALUATION_DETAILS): score,
        f"{paths.MODEL}, training": workspace.get(paths.MODEL).get("training", {}),
    }
    needed = [(path, "metrics") for path in METRICS]
    needed += [(paths.EVALUATION_DETAILS, "details of the evaluation"), (paths.MODEL, "details of the training")]
    tables = {title: list(flatten(figures).items()) for title, figures in tables.items() if figures}
    return {"tables": tables, "notes": workspace.notes(*needed)}


def samples(workspace: Workspace) -> dict:
    """Split samples.md into its settings and (title, facts, text) of each sample."""
    if not (workspace.get(paths.EVALUATION_DETAILS) and paths.SAMPLES.exists()):
        return {"notes": workspace.notes((paths.EVALUATION_DETAILS, "samples"))}
    settings, *parts = re.split(r"^## (?=\d+\. `)", paths.SAMPLES.read_text(encoding="utf-8"), flags=re.M)
    drawn = []
    for each in parts:
        title, _, rest = each.partition("\n")
        facts, _, fenced = rest.partition("```text\n")
        drawn.append((title.replace("`", ""), facts.strip(), fenced.rpartition("\n```")[0]))
    return {"settings": settings.removeprefix("# Samples").strip(), "drawn": drawn, "notes": []}


def model(workspace: Workspace) -> dict:
    """Draw where the parameters and the FLOP are, for the trained model or for the chosen preset."""
    record, meta, params = workspace.get(paths.MODEL), workspace.get(paths.TRAIN_SIDECAR), workspace.params
    if not (record or meta):
        what = "the size of the model, which depends on the vocabulary"
        return {"pictures": [], "notes": workspace.notes((paths.TRAIN_SIDECAR, what))}
    if record:
        config, seq_len = ModelConfig(**record["config"]), record["seq_len"]
    else:
        shape = workspace.presets["models"][params["model"]["name"]]
        config = ModelConfig(**shape, vocab_size=meta["tokenizer"]["vocab_size"])
        seq_len = params["train"]["seq_len"]
    flops = flops_per_token(config, seq_len, params["train"].get("sampled_vocab_size"))
    draw = partial(draw_model, parameters=count_parameters(config), flops=flops)
    return {"seq_len": seq_len, "pictures": [picture("Parameters and FLOP by part", 3.8, draw)], "notes": []}


def data_card(workspace: Workspace) -> dict:
    """Return the origin of the text and its counts by split; draw lengths of tokens and documents."""
    manifest, card = workspace.get(paths.MANIFEST), workspace.get(paths.AUDIT_DETAILS)
    origin = {name: value for name, value in manifest.items() if name not in ("splits", "parts", "format_version")}
    elsewhere = (*SPLITS, "source", "duplicates", "selection", "tokenizer")
    both = {name: value for name, value in card.items() if name not in elsewhere}
    splits = [{**card[split], "duplicates": card["duplicates"][split]} for split in SPLITS] if card else []
    counts = [flatten(split) for split in splits]
    names = dict.fromkeys(name for each in counts for name in each)
    needed = [(paths.MANIFEST, "the origin of the text"), (paths.AUDIT_DETAILS, "counts and duplicates")]
    needed += [(sidecar, f"lengths in {split}") for split, sidecar in SPLITS.items()]
    needed += [(paths.EVALUATION_DETAILS, "losses of documents")]
    return {
        "origin": list(flatten(origin).items()),
        "counts": [(name, *(each.get(name) for each in counts)) for name in names],
        "both": list(flatten(both).items()),
        "vocabulary": vocabulary_tables(card.get("tokenizer", {})),
        "pictures": text_pictures(workspace),
        "notes": workspace.notes(*needed),
    }


def selection(workspace: Workspace) -> dict:
    """Return the number of dropped documents by part, split and rule, and examples of each rule."""
    details = workspace.get(paths.SELECTION_DETAILS)
    notes = workspace.notes((paths.SELECTION_DETAILS, "which documents were dropped"))
    examples = {rule: [describe_example(each) for each in few] for rule, few in details.get("examples", {}).items()}
    rows = dropped_rows(details.get("documents", {}))
    return {"name": details.get("selection"), "rows": rows, "examples": examples, "notes": notes}


def text_pictures(workspace: Workspace) -> list[dict]:
    """Draw lengths of tokens and documents, and each validation document's loss against its contamination."""
    pictures, lengths = [], {}
    for split, sidecar in SPLITS.items():
        meta = workspace.get(sidecar)
        if meta and sidecar.with_suffix(".bin").exists():
            counts, lengths[split] = scan(sidecar.with_suffix(".bin"), meta)
            if split == "train":
                sizes = load_tokenizer(paths.TOKENIZER).token_bytes
                draw = partial(draw_token_lengths, text_counts=counts, token_bytes=sizes)
                pictures.append(picture("Token length", 3.2, draw))
    if lengths:
        pictures.append(picture("Document length", 3.2, partial(draw_document_lengths, lengths=lengths)))
    if workspace.get(paths.EVALUATION_DETAILS) and paths.DOCUMENT_LOSSES.exists():
        table = pq.read_table(paths.DOCUMENT_LOSSES, columns=["leaked_fraction", "nats", "utf8_bytes"])
        draw = partial(plots.draw_documents, documents={name: table[name].to_numpy() for name in table.column_names})
        pictures.append(picture("Loss and contamination by document", 3.2, draw))
    return pictures


def parameters(workspace: Workspace) -> dict:
    """Return the chosen parameters, and which of them differ from those recorded with the last results."""
    recorded = recorded_params(read_yaml(paths.LOCK)) if paths.LOCK.exists() else {}
    sections = [flatten(workspace.params), flatten(selected_presets(workspace.params, workspace.presets))]
    chosen = (sections[0] | sections[1]).items()
    was = {name: f", was {recorded[name]}" for name, value in chosen if recorded.get(name, value) != value}
    tables = [[(n, json.dumps(v, ensure_ascii=False) + was.get(n, "")) for n, v in each.items()] for each in sections]
    return {"tables": tables, "num_changed": len(was)}


def provenance(workspace: Workspace) -> dict:
    """Return the chain of hashes and its faults, the machines that trained, and the code."""
    train, validation, trained = map(workspace.get, (*SPLITS.values(), paths.MODEL))
    chain = {
        paths.MANIFEST: train.get("source", {}).get("manifest_sha256"),
        paths.TOKENIZER_META: train.get("tokenizer", {}).get("sha256"),
        paths.TRAIN: train.get("sha256"),
        paths.VALIDATION: validation.get("sha256"),
        "best weights": trained.get("best", {}).get("sha256"),
        "last weights": trained.get("last", {}).get("sha256"),
        "weights evaluated": workspace.get(paths.EVALUATION_DETAILS).get("weights_sha256"),
        paths.LOCK: sha256_file(paths.LOCK) if paths.LOCK.exists() else None,
    }
    segments = trained.get("segments", [])
    fields = list(dict.fromkeys(field for segment in segments for field in segment))
    packages = [(name, version(name)) for name in paths.PACKAGES]
    return {
        "hashes": [(str(name), sha256 or "does not exist yet") for name, sha256 in chain.items()],
        "num_links": len(workspace.findings),
        "faults": [each for each in workspace.findings if each.fault],
        "segment_fields": fields,
        "segments": [[segment.get(field, "") for field in fields] for segment in segments],
        "versions": [("commit", commit()), ("python", sys.version.split()[0]), *packages],
        "notes": workspace.notes((paths.MODEL, "the machines that trained the model")),
    }


def commit() -> str:
    """Return HEAD and the number of files that differ from it."""
    try:
        head, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown: this folder is not in a git repository with a commit"
    num_files = len(changes.splitlines())
    return f"{head}, {f'{num_files} files differ' if num_files else 'clean'}"
