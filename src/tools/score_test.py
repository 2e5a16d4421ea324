"""Score the model on the test split, which no stage reads, and record the evaluation in test_reads.csv.

    python src score_test
    python src score_test --json

A search that tries many changes and keeps those with the best validation score may fit the validation text.
The test split (docs/data.md) is for the few models that the search has chosen. data/raw/test.parquet is tokenized in
memory and scored with data/models like the validation text in `eval`: in the numerics of the training, in windows that
move by eval.stride_fraction, with an interval over documents.

The row is written before the score is printed. Commit the file: it shows everyone how often the test split was used.
The same weights, text and stride have one row. A second evaluation computes the score again, compares it with the row,
and adds nothing.
"""

import hashlib
import math
import sys

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import pyarrow.compute as pc

from evidence.record import print_json
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import output_lock, read_json
from lm.core.git import git
from lm.core.params import read_section
from lm.core.paths import PARAMS, SOURCES
from lm.evaluate.config import EvalParams
from lm.evaluate.documents import sum_by_document, summarize_file
from lm.evaluate.scoring import load_as_trained, score
from lm.exact.threads import ThreadTuner
from lm.model.gemma3 import Gemma3Model
from lm.model.machine import keep_freed_memory
from lm.model.weights import check_trained_with
from lm.text.documents import Chunk, describe_text, open_manifest, text_of_test
from lm.text.slices import TEST, slice_from
from lm.tokenizer.counts import TextCounts
from lm.tokenizer.encoding import encode_here
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import (
    LOSSY,
    TokenFile,
    check_window_fits,
    lossy_fractions,
    make_sidecar,
)
from tools.record.arguments import tool_parser
from tools.record.held_out import TEST_READS, HeldOutScore, read_test_reads, write_test_reads
from tools.record.lock import warn_of_changed_code
from tools.record.paths import MANIFEST, MODEL, MODELS, RAW, TOKENIZER, TRAIN_SIDECAR, VALIDATION_SIDECAR

SCHEMA = "reprolm.score_test/1"
# The largest relative difference between a score and that of its row. Fast numerics differ between machines.
TOLERANCES = {"exact": 1e-7, "fast": 1e-3}


def open_test(source: str) -> dict:
    """Return the manifest of data/raw, after checking the bytes of its test split.

    Raise ParamsError if there is no test split, IntegrityError if data/raw has the text of another source.
    """
    manifest = open_manifest(RAW)
    if manifest["source"] != source:
        found = f"has the text of {manifest['source']}, but data.source is {source}"
        raise IntegrityError(f"{MANIFEST}: {found}; run `dvc repro`")
    if TEST not in manifest:
        remedy = f"set split.test_documents of sources.{source}.fetch, or name a split `test` of the repository"
        raise ParamsError(f"{MANIFEST}: has no test split; {remedy}, in {SOURCES}, and run `dvc repro`")
    text_of_test(RAW, manifest).check_file()
    return manifest


def tokenize(manifest: dict, tokenizer: Tokenizer) -> tuple[TokenFile, np.ndarray]:
    """Return the tokens of the test split, in memory, and the UTF-8 bytes (D,) int64 of its documents."""
    text = text_of_test(RAW, manifest)
    counts = TextCounts()
    sizes = []

    def read_chunks():
        for chunk in text.chunks():
            sizes.append(utf8_bytes_of(chunk))
            yield chunk

    ids = np.concatenate(list(counts.ids_of(encode_here(read_chunks(), tokenizer))))
    described = counts.sidecar_entries(tokenizer, text.slice, text.source)
    sha256 = hashlib.sha256(ids.data).hexdigest()
    meta = make_sidecar(tokenizer.meta["dtype"], len(ids), described, sha256)
    return TokenFile(text.path, ids, meta), np.concatenate(sizes)


def utf8_bytes_of(chunk: Chunk) -> np.ndarray:
    """Return the UTF-8 bytes (n,) int64 of the documents of a chunk."""
    return np.from_dlpack(pc.binary_length(chunk.texts)).astype(np.int64)


def check_model(record: dict, tokenizer: Tokenizer, manifest: dict) -> None:
    """Raise IntegrityError if the model has another tokenizer, or was trained on the text of another fetch.

    That text may have held the test documents. Warn if the training text of a model is unknown.
    """
    check_trained_with(tokenizer.sha256, tokenizer.folder, MODELS, record)
    for split, sidecar in {"train": TRAIN_SIDECAR, "validation": VALIDATION_SIDECAR}.items():
        sha256 = record["data_sha256"][split]
        if sha256 is None:
            continue
        meta = read_json(sidecar)
        if meta["sha256"] != sha256 or meta["source"] != describe_text(manifest, slice_from(meta["slice"])):
            found = f"trained or selected on other text than {RAW} has now, which may have held the test documents"
            raise IntegrityError(f"{MODEL}: {found} ({sidecar}); run `dvc repro`")
    is_imported = None in record["data_sha256"].values()
    if is_imported or record.get("init_sha256"):
        origin = "is imported" if is_imported else "began with other weights"
        found = f"the model {origin}, so that nobody can say whether it was trained on the test documents"
        print(f"warning: {MODELS}: {found}", file=sys.stderr, flush=True)


def score_documents(
    model: Gemma3Model, tokens: TokenFile, token_bytes: np.ndarray, utf8_bytes: np.ndarray, seq_len: int, stride: int
) -> dict:
    """Return the results over all documents, computed like those of eval.

    token_bytes: bytes of each token, (N,). utf8_bytes: bytes of each document, (D,).
    """
    cores = ThreadTuner(model.numerics, adapts=model.numerics == "exact")
    print(f"scoring {len(tokens.ids):,} tokens of {tokens.path}", file=sys.stderr, flush=True)
    losses, _ = score(model, tokens, seq_len, stride, cores)
    selected = np.zeros(len(tokens.ids), bool)  # no token of the test split has selected a model
    return summarize_file(sum_by_document(losses, selected, token_bytes, tokens.spans, utf8_bytes))


def describe_workspace() -> tuple[str | None, bool]:
    """Return the commit of HEAD, None without one, and whether a file other than test_reads.csv differs from it."""
    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--", ".", f":(exclude){TEST_READS}")
    return commit, bool(changed) or commit is None


def record_evaluation(read: HeldOutScore, tolerance: float) -> tuple[HeldOutScore, list[HeldOutScore], bool]:
    """Add a row to test_reads.csv unless it already has one of these weights and this text.

    Return the row, all rows of this text, and whether the row is new. Raise IntegrityError if a row has another score.
    """
    with output_lock(TEST_READS, wait=True):
        reads = read_test_reads(TEST_READS)
        known = [each for each in reads if key_of(each) == key_of(read)]
        if not known:
            reads.append(read)
            write_test_reads(TEST_READS, reads)
    recorded = known[0] if known else read
    if not math.isclose(recorded.bits_per_byte, read.bits_per_byte, rel_tol=tolerance):
        row = f"the row of the weights {read.weights_sha256[:12]}… says {recorded.bits_per_byte} bits per byte"
        remedy = f"restore the code of its commit, {recorded.commit or 'which is not known'}, or correct the row"
        raise IntegrityError(f"{TEST_READS}: {row}, but their score is another one now; {remedy}")
    of_text = [each for each in reads if each.test_sha256 == read.test_sha256]
    return recorded, of_text, not known


def key_of(read: HeldOutScore) -> tuple:
    """Return everything that decides a score."""
    return read.weights_sha256, read.test_sha256, read.stride_tokens


def to_text(read: HeldOutScore, summary: dict, num_evaluations: int, is_new: bool, is_lossy: bool) -> str:
    """Return the lines for a person."""
    interval = "" if read.low is None else f", 95 % interval {read.low:.4f} to {read.high:.4f}"
    scored = f"test: {read.bits_per_byte:.4f} bits per byte ({read.documents} documents{interval})"
    lossy = f"; {LOSSY}" if is_lossy else ""
    if is_new:
        row = f"{TEST_READS} records it as evaluation {num_evaluations} on this text; commit the file"
    else:
        row = f"{TEST_READS} has this score already, of commit {(read.commit or '(none)')[:12]}; nothing was added"
    return f"{scored}, {summary['nats_per_token']:.4f} nats per token{lossy}\n{row}"


@exit_with_status
def main(argv: list[str]) -> None:
    """Score data/models on the test split; record the evaluation, then print it."""
    parser = tool_parser("score_test", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)

    # Open everything, and check that it belongs together, before the answer is computed.
    read_test_reads(TEST_READS)
    params = read_section(PARAMS, "eval", EvalParams)
    manifest = open_test(read_section(PARAMS, "data.source", str))
    keep_freed_memory()
    tokenizer = load_tokenizer(TOKENIZER)
    model, record = load_as_trained(MODELS)
    check_model(record, tokenizer, manifest)
    warn_of_changed_code(MODELS)
    tokens, utf8_bytes = tokenize(manifest, tokenizer)
    seq_len = record["seq_len"]
    check_window_fits(tokens, seq_len)
    token_bytes = tokenizer.bytes_of(tokens.ids)

    # Score, and record the evaluation before anybody can see the score.
    stride = params.stride_tokens(seq_len)
    summary = score_documents(model, tokens, token_bytes, utf8_bytes, seq_len, stride)
    commit, differs = describe_workspace()
    low, high = summary["bits_per_byte_interval"]
    evaluation = HeldOutScore(
        commit=commit,
        workspace_differs=differs,
        weights_sha256=record["best"]["sha256"],
        test_sha256=manifest[TEST]["sha256"],
        stride_tokens=stride,
        documents=summary["documents"],
        bits_per_byte=summary["bits_per_byte"],
        low=low,
        high=high,
    )
    read, evaluations, is_new = record_evaluation(evaluation, TOLERANCES[model.numerics])

    # Print it.
    if args.json:
        others = {name: summary[name] for name in ("nats_per_token", "tokens", "utf8_bytes")}
        print_json(SCHEMA, read._asdict() | others | {"is_new": is_new, "looks": len(evaluations)})
    else:
        print(to_text(read, summary, len(evaluations), is_new, bool(lossy_fractions(tokens.meta))))
