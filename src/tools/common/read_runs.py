"""Runs of revisions, read through DVC."""

import csv
import io

import numpy as np
import pyarrow.parquet as pq

from lm.core.errors import IntegrityError
from lm.text.slices import TEST
from tools.common.parameters import preset_names_left_out
from tools.common.paths import DOCUMENT_LOSSES, MANIFEST, PLOTS
from tools.common.revisions import Revision, reject_other_text
from tools.common.runs import CODE, SEED, Run
from tools.common.test_reads import TEST_READS, parse_test_reads
from tools.common.timing import read_timing

# Inputs that cannot explain a difference: those of stages before and after the model, and what is made from the rest.
STAGES_LEFT_OUT = ("fetch", "audit", "plot")
INPUTS_LEFT_OUT = ("data/models", "data/audit")


def read_runs(revisions: list[Revision]) -> list[Run]:
    """Read runs that were evaluated on the same documents; IntegrityError if they were not."""
    for other in revisions[1:]:
        reject_other_text(revisions[0], other)
    runs = [read_run(revision) for revision in revisions]
    if not all(np.array_equal(runs[0].utf8_bytes, run.utf8_bytes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")
    return runs


def read_run(revision: Revision) -> Run:
    """Read the losses and metrics of a run; IntegrityError if a loss is not finite or the run is too old."""
    results = revision.results()
    losses = pq.read_table(io.BytesIO(revision.read(DOCUMENT_LOSSES)))
    columns = {name: losses[name].to_numpy() for name in losses.column_names}
    if not np.isfinite(columns["nats"]).all():
        raise IntegrityError(
            f"{revision.name}: {DOCUMENT_LOSSES} contains losses that are not finite; run `dvc repro -f eval`"
        )
    inputs = revision.hashes("deps", STAGES_LEFT_OUT)
    params = preset_names_left_out(revision.params())
    curve = revision.read(PLOTS / "validation.csv").decode("utf-8")
    return Run(
        name=revision.name,
        seed=params[SEED],
        nats=columns["nats"],
        utf8_bytes=columns["utf8_bytes"],
        sources=columns.get("source"),
        params=params,
        inputs=comparable_inputs(inputs),
        tokens_seen=results["last"]["tokens_seen"],
        best_tokens_seen=results["best"]["tokens_seen"],
        num_parameters=results["training"]["parameters"],
        train_seconds=read_timing(results).get("train_seconds"),
        validations=list(csv.DictReader(curve.splitlines())),
        num_earlier_looks=num_earlier_looks(revision, results["best"].get("sha256")),
        is_lossy="lossy_tokenizer" in results.get("evaluation", {}),
        code={path: revision.files_of(path) for path, md5 in inputs.items() if is_code_folder(path, md5)},
    )


def comparable_inputs(inputs: dict[str, str]) -> dict[str, str]:
    """Return the inputs (path → md5) of all stages except STAGES_LEFT_OUT without INPUTS_LEFT_OUT."""
    return {path: md5 for path, md5 in inputs.items() if path not in INPUTS_LEFT_OUT}


def is_code_folder(path: str, md5: str) -> bool:
    """Return whether an input of a stage is a folder of code."""
    return path.startswith(CODE) and md5.endswith(".dir")


def num_earlier_looks(revision: Revision, weights_sha256: str | None) -> int:
    """Return how many looks at its test split, for other weights, a revision holds: its run may be chosen by them.

    Looks at any text count if its own cannot be read.
    """
    content = revision.read_if_there(TEST_READS)
    if content is None:
        return 0
    reads = parse_test_reads(content.decode("utf-8", "replace"), f"{revision.name}: {TEST_READS}")
    others = [read for read in reads if read.weights_sha256 != weights_sha256]
    if not others:
        return 0
    try:
        manifest = revision.read_json(MANIFEST)
    except IntegrityError:
        return len(others)
    test_sha256 = manifest.get(TEST, {}).get("sha256")
    return sum(read.test_sha256 == test_sha256 for read in others)
