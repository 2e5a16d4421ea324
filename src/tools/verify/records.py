"""Check records against the files that they describe, and metrics against the results that they are made from."""

import csv
import re
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from lm.core.errors import IntegrityError
from lm.core.files import read_json, read_parquet, sha256_file
from lm.core.params import coerce
from lm.evaluate.config import EvalParams
from lm.evaluate.documents import metrics_of, summarize_file, summarize_sections, summarize_sources
from lm.text.slices import TEST
from tools.record import paths
from tools.record.lock import Lock, md5_of
from tools.record.parameters import differences, flatten

HASH = re.compile("[0-9a-f]{8,64}")  # a SHA-256 or its first digits; fewer would fit other files too


class Link(NamedTuple):
    """A dotted entry of a record that holds the SHA-256 of a file, or its first digits, and that file.

    A record is a JSON file, or a parquet file with the entry in its metadata.
    """

    record: Path
    entry: str
    file: Path


BEST = paths.MODELS / "best_model_params.pt"
LAST = paths.MODELS / "last_model_params.pt"
LINKS = [
    Link(paths.TRAIN_SIDECAR, "sha256", paths.TRAIN),
    Link(paths.TRAIN_SIDECAR, "tokenizer.sha256", paths.TOKENIZER_META),
    Link(paths.VALIDATION_SIDECAR, "sha256", paths.VALIDATION),
    Link(paths.VALIDATION_SIDECAR, "tokenizer.sha256", paths.TOKENIZER_META),
    Link(paths.AUDIT / "contamination.parquet", "validation_sha256", paths.VALIDATION),
    Link(paths.MODEL, "tokenizer_sha256", paths.TOKENIZER_META),
    Link(paths.MODEL, "data_sha256.train", paths.TRAIN),
    Link(paths.MODEL, "data_sha256.validation", paths.VALIDATION),
    Link(paths.MODEL, "best.sha256", BEST),
    Link(paths.MODEL, "last.sha256", LAST),
    Link(paths.MODEL, "seen_sha256", paths.MODELS / "seen_documents.pt"),
    Link(paths.EVALUATION_DETAILS, "weights_sha256", BEST),
]
# A record of a file that was made from a slice of the text has the hash and the name of the split.
MADE_FROM_TEXT = [
    (paths.TRAIN_SIDECAR, "source.text_sha256", "slice.split"),
    (paths.VALIDATION_SIDECAR, "source.text_sha256", "slice.split"),
    (paths.TOKENIZER_META, "text.text_sha256", "text.slice.split"),
    (paths.MODEL, "text.source.text_sha256", "text.slice.split"),
]
PARAMETERS = ("seq_len", "seed", "eval_tokens", "attend_across_documents")  # of `train`, in model.json


def check_records(lock: Lock) -> int:
    """Return the number of hashes of files in the records of the stages that ran.

    Raise IntegrityError with the first entry that does not fit, and the command that makes its file again.
    """
    count = 0
    links = links_of_workspace()
    for stage, content in lock.stages.items():
        made = [out["path"] for out in content["outs"]]
        for link in links:
            if any(link.record.is_relative_to(path) for path in made):
                check_link(link, stage)
                count += 1
    if "train" in lock.stages:
        check_start(lock)
        check_training(lock.params)
    if "eval" in lock.stages:
        check_evaluation(lock.params)
    return count


def wrong(file: Path, problem: str, stage: str) -> IntegrityError:
    """Return the error of a file that a stage must make again."""
    return IntegrityError(f"{file}: {problem}; run `dvc repro --force --single-item {stage} && dvc repro`")


# Hashes of files.


def links_of_workspace() -> list[Link]:
    """Return every link of the workspace's records, in the order of the stages."""
    links = []
    for file in sorted(paths.RAW.glob("*.parquet")):
        entry = "test.sha256" if file.stem == TEST else f"splits.{file.stem}.sha256"
        links.append(Link(paths.MANIFEST, entry, file))
    for record, entry, split_entry in MADE_FROM_TEXT:
        split = entries_of(record).get(split_entry)
        links.append(Link(record, entry, paths.RAW / f"{split}.parquet"))
    for file in sorted(paths.TOKENIZER.glob("*")):
        links.append(Link(paths.TOKENIZER_META, f"files.{file.name}", file))
    return links + LINKS


def entries_of(record: Path) -> dict[str, object]:
    """Return the entries of a record by their dotted names, {} if it is missing."""
    if not record.exists():
        return {}
    if record.suffix != ".parquet":
        return flatten(read_json(record))
    metadata = read_parquet(record).schema.metadata or {}
    return {name.decode(): value.decode() for name, value in metadata.items()}


def check_link(link: Link, stage: str) -> None:
    """Compare an entry, if it exists, with the SHA-256 of its file: a downloaded tokenizer names no text."""
    recorded = entries_of(link.record).get(link.entry)
    if recorded is None:
        return
    found = sha256_file(link.file) if link.file.exists() else "missing"
    if not (HASH.fullmatch(str(recorded)) and found.startswith(str(recorded))):
        raise wrong(link.record, f"{link.entry} is {recorded}; the SHA-256 of {link.file} is {found}", stage)


# Training.


def check_start(lock: Lock) -> None:
    """Compare the hash of the initial weights in model.json with train.init_from, unless the latter has changed."""
    folder = str(lock.params["train.init_from"])
    if lock.hashes("deps").get(folder) != md5_of(Path(folder)):
        return
    weights = Path(folder, BEST.name)
    found = sha256_file(weights) if weights.exists() else None
    recorded = read_json(paths.MODEL).get("init_sha256")
    if recorded != found:
        raise wrong(paths.MODEL, f"init_sha256 is {recorded}; that of {weights} is {found}", "train")


def check_training(params: dict[str, object]) -> None:
    """Compare model.json with the parameters of the run, the metrics with model.json, and both with the curve."""
    model = read_json(paths.MODEL)
    for name in PARAMETERS:
        run = params[f"train.{name}"]
        if model.get(name) != run:
            raise wrong(paths.MODEL, f"{name} is {model.get(name)}; dvc.lock has {run}", "train")

    wanted = {
        "val_loss": model["best"]["val_loss"],
        "train_loss": model["training"]["last_train_loss"],
        "tokens_seen": model["last"]["tokens_seen"],
        "parameters": model["training"]["parameters"],
    }
    for name, value in read_json(paths.TRAIN_METRICS).items():
        if value != wanted.get(name):
            problem = f"{name} is {value}; by {paths.MODEL} it must be {wanted.get(name)}"
            raise wrong(paths.TRAIN_METRICS, problem, "train")

    rows = read_curve(paths.CURVE)
    lowest = min((row["val_loss"] for row in rows.values()), key=float)
    for name, loss in (("best", lowest), ("last", rows[max(rows)]["val_loss"])):
        described = model[name]
        found = f"{described['val_loss']:.8g}"  # as `write_csv` writes it
        row = rows.get(described["step"], {})
        is_row = row.get("val_loss") == found and row.get("tokens") == str(described["tokens_seen"])
        if not is_row or found != loss:
            problem = f"{name} has val_loss {found} at step {described['step']}; by {paths.CURVE} it must be {loss}"
            raise wrong(paths.MODEL, problem, "train")


def read_curve(path: Path) -> dict[int, dict[str, str]]:
    """Return the rows of a curve by step, {} if it is missing."""
    if not path.exists():
        return {}
    with open(path, newline="", encoding="utf-8") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


# Evaluation.


def read_losses() -> dict[str, np.ndarray]:
    """Return the columns (D,) of the table of losses."""
    table = read_parquet(paths.DOCUMENT_LOSSES)
    return {name: table[name].to_numpy() for name in table.column_names}


def check_evaluation(params: dict[str, object]) -> None:
    """Compare the details of the evaluation with its losses and parameters, and its metrics with the details."""
    losses = read_losses()
    of_eval = {name.removeprefix("eval."): value for name, value in params.items() if name.startswith("eval.")}
    seq_len = cast(int, params["train.seq_len"])
    wanted = {
        "window_tokens": seq_len,
        "stride_tokens": coerce(of_eval, EvalParams, "eval", str(paths.LOCK)).stride_tokens(seq_len),
        **summarize_file(losses),
        **summarize_sections(losses),
        **summarize_sources(losses),
    }
    details = read_json(paths.EVALUATION_DETAILS)
    for name, value in wanted.items():
        if details.get(name) != value:
            problem = f"{name} is {details.get(name)}; by {paths.DOCUMENT_LOSSES} and {paths.LOCK} it must be {value}"
            raise wrong(paths.EVALUATION_DETAILS, problem, "eval")
    for name, value, found in differences(metrics_of(details), read_json(paths.EVAL_METRICS)):
        problem = f"{name} is {found}; by {paths.EVALUATION_DETAILS} it must be {value}"
        raise wrong(paths.EVAL_METRICS, problem, "eval")
