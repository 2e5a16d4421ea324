"""One page about the run that lies here, also one in progress: curves, figures, samples, data, provenance.

    python src report
    python src report elsewhere/mine.html

The page is one file that needs no network and no script. What is not made yet, or was made of
something else than what lies here now, is left out, and a line says so.
"""

import argparse
import dataclasses
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lm.core.errors import command
from lm.core.files import read_json, sha256_file, write_text
from lm.core.params import read_yaml
from lm.model.gemma3 import ModelConfig, count_parameters, flops_per_token
from lm.plots import read_csv
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import BLOCK_TOKENS, TokenFile, blocks_of, entropy_per_token, map_ids, sidecar_path
from tools.common.paths import PACKAGES, PLACES
from tools.common.records import (
    Digests,
    Finding,
    audit_of_tokens,
    run_checks,
    score_of_model,
    text_of_tokens,
    tokenizer_of_model,
    tokenizer_of_tokens,
    tokens_of_model,
    training_of_model,
)
from tools.common.revisions import flatten
from tools.report import figures as figure_report
from tools.report import html
from tools.report import parts as report_parts

PARAMS, LOCK = Path("params.yaml"), Path("dvc.lock")
MANIFEST, VOCABULARY, MODEL = PLACES.raw / "manifest.json", PLACES.tokenizer / "meta.json", PLACES.models / "model.json"
TRAIN, VALIDATION = sidecar_path(PLACES.train), sidecar_path(PLACES.validation)
CARD, TRAINED, TIMED, SCORED = (PLACES.metrics / f"{name}.json" for name in ("data", "train", "timing", "eval"))
SAMPLES, LOSSES = PLACES.metrics / "samples.md", Path("data/evaluation/document_losses.parquet")
PLOTS = Path("plots")
LINKS = [
    (text_of_tokens, TRAIN, MANIFEST),
    (text_of_tokens, VALIDATION, MANIFEST),
    (tokenizer_of_tokens, TRAIN, VOCABULARY),
    (tokenizer_of_tokens, VALIDATION, VOCABULARY),
    (audit_of_tokens, CARD, MANIFEST, TRAIN, VALIDATION),
    (tokenizer_of_model, MODEL, VOCABULARY),
    (tokens_of_model, MODEL, TRAIN, VALIDATION),
    (training_of_model, TRAINED, MODEL),
    (score_of_model, SCORED, MODEL, VALIDATION),
]


@dataclasses.dataclass(frozen=True)
class Workspace:
    """What lies here: parameters, JSON records that hold of each other, and why the others are left out."""

    params: dict
    records: dict[Path, dict]
    left_out: dict[Path, str]
    findings: list[Finding]

    def get(self, path: Path) -> dict:
        """A record, {} if it is left out."""
        return self.records.get(path, {})

    def note(self, path: Path, what: str) -> str:
        """The line that says why something that is made of a record is not shown."""
        return html.paragraph(f"Left out: {what}; {path} {self.left_out.get(path, 'is not there yet')}.", "note")


def read_workspace() -> Workspace:
    """Read params.yaml and the records; one that was made of something else than the others is left out."""
    findings = list(run_checks(LINKS, Digests()))
    left_out = {each.blamed[-1]: "does not fit the other records, see Provenance" for each in findings if each.fault}
    paths = {path for _, *needed in LINKS for path in needed} | {TIMED}
    records = {path: read_json(path) for path in paths if path.exists() and path not in left_out}
    weights = records.get(MODEL, {}).get("best", {}).get("sha256", "")
    if SCORED in records and not weights.startswith(records[SCORED].get("weights_sha256", "of none")):
        left_out[SCORED] = "is about other weights than those of this run, which is not evaluated yet"
        del records[SCORED]
    return Workspace(read_yaml(PARAMS), records, left_out, findings)


def curve(name: str) -> dict[str, list[float]]:
    """A file of plots/; {} if it is missing or has no rows."""
    path = PLOTS / name
    return read_csv(path) if path.exists() else {}


def title(workspace: Workspace) -> str:
    """What the three selectors select."""
    return " · ".join(flatten(workspace.params)[selector] for selector in report_parts.BOOKS)


def verdict(workspace: Workspace) -> str:
    """How good the model is, or how far the run has come."""
    scored, trained, timed = (workspace.get(path) for path in (SCORED, TRAINED, TIMED))
    if scored:
        return report_parts.verdict_scored(scored, trained, timed)
    planned, finished = workspace.params["train"]["max_tokens"], MODEL in workspace.records
    return report_parts.verdict_training(curve("validation.csv"), planned, timed, finished)


def curves(workspace: Workspace) -> str:
    """Losses by tokens and time, rates, loss by context."""
    position, pictures = curve("loss_by_position.csv"), training_pictures(workspace.get(VALIDATION))
    notes = [] if pictures else [html.paragraph("Left out: curves of training; plots/ has none yet.", "note")]
    if position and workspace.get(SCORED):
        aid = "It falls as long as the model uses more context; where it is flat, longer windows would not help."
        pictures.append(html.figure("Loss by context", figure_report.draw_position(position), aid))
    else:
        notes.append(workspace.note(SCORED, "loss by context"))
    return html.section("Curves", html.columns(*pictures), *notes)


def training_pictures(meta: dict) -> list[str]:
    """The curves that a run writes while it goes on; `meta`, the validation sidecar, knows the floor or is {}."""
    train, validation, timing = (curve(f"{name}.csv") for name in ("training", "validation", "timing"))
    floor = entropy_per_token(TokenFile(PLACES.validation, np.empty(0), meta)) if meta else None
    pictures = []
    if validation:
        aid = "Thin: mean loss between two log lines; thick: smoothed; dashed: the text that chooses the best weights."
        picture = figure_report.draw_loss_by_tokens(train, validation, floor)
        pictures.append(html.figure("Loss against tokens", picture, aid))
    if validation and timing:
        aid = "The same curves by the clock, pauses left out; compare times only of runs on the same, idle machine."
        picture = figure_report.draw_loss_by_time(train, validation, timing, floor)
        pictures.append(html.figure("Loss against time", picture, aid))
    if train:
        aid = "The norm is taken before clipping; where the loss follows its spikes, the rate is too high."
        pictures.append(html.figure("Learning rate and gradient norm", figure_report.draw_rates(train), aid))
    return pictures


def metrics(workspace: Workspace) -> str:
    """Every figure of eval, train and timing."""
    shown, notes = [], []
    for path, what in ((SCORED, "figures of the evaluation"), (TRAINED, "figures of training"), (TIMED, "speed")):
        record = {name: value for name, value in workspace.get(path).items() if name != "weights_sha256"}
        if record:
            shown.append(html.heading(str(path)) + report_parts.figures_table(record))
        else:
            notes.append(workspace.note(path, what))
    return html.section("Metrics", html.columns(*shown[:1], "".join(shown[1:])), *notes)


def samples(workspace: Workspace) -> str:
    """What the model writes."""
    there = workspace.get(SCORED) and SAMPLES.exists()
    shown = report_parts.samples(SAMPLES.read_text(encoding="utf-8")) if there else workspace.note(SCORED, "samples")
    return html.section("Samples", shown)


def model(workspace: Workspace) -> str:
    """Where the parameters and the work are."""
    record, meta, params = workspace.get(MODEL), workspace.get(TRAIN), workspace.params
    if record:
        config, seq_len = ModelConfig(**record["config"]), record["seq_len"]
    elif meta:
        shape = params["models"][params["model"]["name"]]
        config = ModelConfig(**shape, vocab_size=meta["tokenizer"]["vocab_size"])
        seq_len = params["train"]["seq_len"]
    else:
        return html.section("Model", workspace.note(TRAIN, "the model's size, which the vocabulary decides"))
    aid = f"Work of a token in windows of {seq_len:,}, forward and backward; scores are what longer windows add to."
    picture = figure_report.draw_parts(count_parameters(config), flops_per_token(config, seq_len))
    return html.section("Model", html.columns(html.figure("Parameters and FLOP by part", picture, aid)))


def data_card(workspace: Workspace) -> str:
    """Where the text comes from, how much of it there is, what stands twice, how long its parts are."""
    manifest, card = workspace.get(MANIFEST), workspace.get(CARD)
    tables = html.columns(report_parts.origin(manifest), report_parts.counts(card) if card else "")
    notes = "" if manifest else workspace.note(MANIFEST, "where the text comes from")
    notes += "" if card else workspace.note(CARD, "counts and duplicates")
    return html.section("Data card", tables, notes, text_pictures(workspace))


def text_pictures(workspace: Workspace) -> str:
    """Lengths of tokens and documents, and what validation documents share with training."""
    pictures, notes, lengths = [], [], {}
    for name, sidecar in (("train", TRAIN), ("validation", VALIDATION)):
        path, meta = sidecar.with_suffix(".bin"), workspace.get(sidecar)
        if not (meta and path.exists()):
            notes.append(workspace.note(sidecar, f"lengths of {name}"))
            continue
        counts, lengths[name] = scan(path, meta)
        if name == "train":
            sizes = load_tokenizer(PLACES.tokenizer).token_bytes
            aid = "Long tokens in the vocabulary that the text hardly uses are parameters that hardly learn."
            pictures.append(html.figure("Token length", figure_report.draw_token_lengths(counts, sizes), aid))
    if lengths:
        aid = "Both splits should look alike; several documents shorter than a window stand in it together."
        pictures.append(html.figure("Document length", figure_report.draw_document_lengths(lengths), aid))
    if workspace.get(SCORED) and LOSSES.exists():
        aid = "A slope down to the right: text seen in training is easier. A mark's area is its document's bytes."
        pictures.append(html.figure("Leakage by document", documents_picture(), aid))
    else:
        notes.append(workspace.note(SCORED, "losses of documents"))
    return html.columns(*pictures) + "".join(notes)


def scan(path: Path, meta: dict) -> tuple[np.ndarray, np.ndarray]:
    """How often each id occurs (V,) and each document's tokens (D,), in one pass over a token file, block by block."""
    tokenizer = meta["tokenizer"]
    counts, ends = np.zeros(tokenizer["vocab_size"], np.int64), []
    for start, block in blocks_of(map_ids(path, meta), BLOCK_TOKENS):
        counts += np.bincount(block, minlength=len(counts))
        ends.append(start + np.flatnonzero(block == tokenizer["eot_id"]))
    return counts, np.diff(np.concatenate(ends), prepend=-1)


def documents_picture() -> bytes:
    """Each validation document's loss against what it shares with training."""
    table = pq.read_table(LOSSES, columns=["nats", "utf8_bytes", "shared_share"])
    nats, sizes, shared = (column.to_numpy() for column in table.columns)
    return figure_report.draw_documents(shared, nats / np.log(2) / np.maximum(sizes, 1), sizes)


def parameters(workspace: Workspace) -> str:
    """What the run is, and where the recorded results are of something else."""
    recorded = {}
    for stage in read_yaml(LOCK)["stages"].values() if LOCK.exists() else ():
        for params in stage.get("params", {}).values():
            recorded |= flatten(params)
    return html.section("Parameters", report_parts.parameters(workspace.params, recorded, LOCK))


def provenance(workspace: Workspace) -> str:
    """The chain of hashes, whether it holds, what computed, which code."""
    faults = [each for each in workspace.findings if each.fault]
    total, broken = len(workspace.findings), len(faults)
    words = f"{total - broken} of {total} links between records hold; python src verify reads every byte as well."
    parts = [html.table(hash_rows(workspace), ["what", "SHA-256"]), html.paragraph(words, "note")]
    parts += [html.paragraph(f"Does not hold: {each.subject}: {each.fault}.") for each in faults]
    if MODEL in workspace.records:
        segments = workspace.get(MODEL)["segments"]
        rows = [[str(value) for value in each.values()] for each in segments]
        parts += [html.heading("What computed"), html.table(rows, list(segments[0]))]
    else:
        parts.append(workspace.note(MODEL, "what the run computed on"))
    versions = [
        ["commit", report_parts.commit()],
        ["python", sys.version.split()[0]],
        *([name, version(name)] for name in PACKAGES),
    ]
    return html.section("Provenance", *parts, html.heading("Where this page was made"), html.table(versions))


def hash_rows(workspace: Workspace) -> list[list[str]]:
    """Text → tokenizer → tokens → weights → figures, each as the next one records it; and dvc.lock."""
    train, validation, trained, scored = (workspace.get(path) for path in (TRAIN, VALIDATION, MODEL, SCORED))
    chain = {
        str(MANIFEST): train.get("source", {}).get("manifest_sha256"),
        str(VOCABULARY): train.get("tokenizer", {}).get("sha256"),
        str(PLACES.train): train.get("sha256"),
        str(PLACES.validation): validation.get("sha256"),
        "best weights": trained.get("best", {}).get("sha256"),
        "last weights": trained.get("last", {}).get("sha256"),
        "weights evaluated": scored.get("weights_sha256"),
        str(LOCK): sha256_file(LOCK) if LOCK.exists() else None,
    }
    return [[name, sha256 or "not there yet"] for name, sha256 in chain.items()]


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="python src report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("out", type=Path, nargs="?", default="report.html", help="the page (report.html)")
    return parser.parse_args(argv)


@command
def main(argv: list[str]) -> None:
    """Write the page."""
    args = parse(argv)
    workspace = read_workspace()
    sections = (verdict, curves, metrics, samples, model, data_card, parameters, provenance)
    write_text(args.out, html.page(title(workspace), *(section(workspace) for section in sections)))
    print(f"{args.out}: {args.out.stat().st_size:,} bytes; open it in a browser")
