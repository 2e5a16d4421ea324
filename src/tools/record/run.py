"""A recorded run: its losses, and the facts that DVC recorded of it."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import pyarrow.parquet as pq

from evidence.runs import Run
from lm.core.errors import IntegrityError
from lm.evaluate.documents import describe_seen
from tools.record.held_out import TEST_READS, parse_test_reads
from tools.record.lock import read_timing
from tools.record.parameters import preset_names_left_out
from tools.record.paths import (
    CURVE,
    DOCUMENT_LOSSES,
    EVALUATION_DETAILS,
    LOCK,
    MODEL,
    VALIDATION_SIDECAR,
)
from tools.record.revision import Revision

SEED = "train.seed"
DIGEST = "checkpoint_digest"  # a column of plots/validation.csv
CODE = ("src/", "requirements.txt")  # inputs in which two runs with the same bits may differ


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that DVC recorded of a run besides its losses."""

    params: dict[str, object]  # by dotted name
    inputs: dict[str, str]  # path → hash of the data and code that the stages read
    tokens_seen: int
    best_tokens_seen: int  # until the best model
    num_parameters: int
    train_seconds: float | None  # None: not trained on this machine
    validations: list[dict[str, str]]  # rows of plots/validation.csv as text by column
    is_lossy: bool = False  # whether the tokenizer changes the validation text
    seen: str = ""  # how much of the validation text the start of the run has seen, in words; "" without a start
    num_earlier_evaluations: int = 0  # of other weights on the test split, when this run was recorded
    code: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)  # folder → file → md5, if known

    @property
    def configuration(self) -> str:
        """Return a key that runs share if they differ only in the seed."""
        others = {name: value for name, value in self.params.items() if name != SEED}
        return json.dumps([others, self.inputs], sort_keys=True)

    @property
    def data(self) -> dict[str, str]:
        """Return the inputs without code."""
        return {path: md5 for path, md5 in self.inputs.items() if not path.startswith(CODE)}


def read_runs(revisions: list[Revision]) -> tuple[list[Run], dict[str, Facts]]:
    """Read runs that were evaluated on the same documents, and their facts by name; IntegrityError if they were not."""
    for other in revisions[1:]:
        reject_other_text(revisions[0], other)
    runs = []
    facts = {}
    for revision in revisions:
        run, facts[revision.name] = read_run(revision)
        runs.append(run)
    if not all(np.array_equal(runs[0].sizes, run.sizes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")
    return runs, facts


def reject_other_text(first: Revision, other: Revision) -> None:
    """Raise IntegrityError unless both validation files hold the same documents, whatever the tokenizer."""
    # The same range of characters of the same file.
    sidecars = [revision.read_json(VALIDATION_SIDECAR) for revision in (first, other)]
    texts = [(meta["source"].get("text_sha256"), meta["slice"]) for meta in sidecars]
    if None in texts[0] or texts[0] != texts[1]:
        remedy = "compare runs with the same data.source, validation range and selection"
        raise IntegrityError(f"{first.name} and {other.name} were evaluated on different documents; {remedy}")


def read_run(revision: Revision) -> tuple[Run, Facts]:
    """Read the losses and records of a run. IntegrityError if it is not finished, or a loss is not finite."""
    lock = revision.lock
    if not lock.is_finished:
        found = f"{revision.name}: {LOCK} has no evaluation of the model and the text that it records"
        raise IntegrityError(f"{found}; run `dvc repro` there")
    losses = pq.read_table(io.BytesIO(revision.read(DOCUMENT_LOSSES)))
    columns = {name: losses[name].to_numpy() for name in losses.column_names}
    if not np.isfinite(columns["nats"]).all():
        raise IntegrityError(
            f"{revision.name}: {DOCUMENT_LOSSES} contains losses that are not finite; run `dvc repro -f eval`"
        )
    model = revision.read_json(MODEL)
    details = revision.read_json(EVALUATION_DETAILS)
    params = preset_names_left_out(lock.params)
    code = [path for path, md5 in lock.inputs.items() if path.startswith(CODE) and md5.endswith(".dir")]
    facts = Facts(
        params=params,
        inputs=lock.inputs,
        tokens_seen=model["last"]["tokens_seen"],
        best_tokens_seen=model["best"]["tokens_seen"],
        num_parameters=model["training"]["parameters"],
        train_seconds=read_timing(model).get("train_seconds"),
        validations=parse_curve(revision.read(CURVE)),
        num_earlier_evaluations=num_earlier_evaluations(revision, model["best"].get("sha256")),
        is_lossy="lossy_tokenizer" in details,
        seen=describe_seen(details),
        code={path: revision.files_of(path) for path in code},
    )
    run = Run(
        name=revision.name,
        seed=cast(int, params[SEED]),
        values=columns["nats"] / math.log(2),
        sizes=columns["utf8_bytes"],
        configuration=facts.configuration,
        sources=columns.get("source"),
    )
    return run, facts


def parse_curve(content: bytes) -> list[dict[str, str]]:
    """Return the rows of plots/validation.csv as text by column."""
    return list(csv.DictReader(content.decode("utf-8").splitlines()))


def num_earlier_evaluations(revision: Revision, weights_sha256: str | None) -> int:
    """Return how many evaluations of other weights on a test split a revision records; they may have chosen its run."""
    content = revision.read_if_there(TEST_READS)
    reads = parse_test_reads(content, f"{revision.name}: {TEST_READS}") if content else []
    return sum(read.weights_sha256 != weights_sha256 for read in reads)
