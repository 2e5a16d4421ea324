"""Compare runs: differences in loss with intervals over documents and seeds.

    python src compare main my-experiment
    python src compare main workspace --out comparisons/mine.md
    python src compare base-{1..5} wider-{1..5}

NAME is an experiment, a quoted pattern of experiments such as 'w-*', a git revision, or `workspace` for the files in
this folder. The first is the baseline. Runs that differ only in train.seed form one group. Bits per byte compare across
tokenizers. Runs evaluated on different text are rejected (exit code 4).
"""

import argparse
import contextlib
import csv
import io
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import write_csv, write_text
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, document_spans, open_tokens
from tools.common.arguments import add_resampling, check_resampling, count, tool_parser
from tools.common.parameters import preset_names_left_out
from tools.common.paths import DOCUMENT_LOSSES, PLOTS, TOKENIZER, VALIDATION, VALIDATION_SIDECAR
from tools.common.preview import previews
from tools.common.revisions import Revision, is_pattern, matching, reject_other_text, unfinished
from tools.common.timing import read_timing
from tools.compare.report import report
from tools.compare.runs import CODE, Group, Run, compare_with_first, group_by_seed

# Inputs that cannot explain a difference: those of stages before and after the model, and what is made from the rest.
STAGES_LEFT_OUT = ("fetch", "audit", "plot")
INPUTS_LEFT_OUT = ("data/models", "data/audit")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if one is out of range."""
    parser = tool_parser("compare", __doc__)
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="two or more experiments, patterns, git revisions, or workspace"
    )
    parser.add_argument("--out", type=Path, help="the Markdown file (comparisons/A-vs-B.md, which git ignores)")
    parser.add_argument("--documents", type=count, default=10, help="documents that changed most to list (10)")
    add_resampling(parser, 1999, "documents")
    args = parser.parse_args(argv)
    check_resampling(args)
    given = " ".join(args.names)
    patterns = [name for name in args.names if is_pattern(name)]
    args.unfinished = unfinished(patterns) if patterns else {}
    args.names = matching(args.names)
    if len(args.names) < 2:
        waiting = f" ({unfinished_sentence(args.unfinished)})" if args.unfinished else ""
        raise ParamsError(f"{given}: name at least two different runs{waiting}")
    more = f"-and-{len(args.names) - 2}-more" if len(args.names) > 2 else ""
    name = re.sub(r"[^\w.~-]+", "-", f"{args.names[0]}-vs-{args.names[1]}{more}")
    args.out = args.out or Path("comparisons", f"{name}.md")
    if args.out.suffix != ".md":
        raise ParamsError(f"--out is {args.out}; the name must end in .md")
    return args


def unfinished_sentence(states: dict[str, str]) -> str:
    """Return which runs are left out because they are not finished; `states`: name → state."""
    runs = ", ".join(f"{name} ({state})" for name, state in states.items())
    return f"Not finished, so not compared: {runs}"


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
    curve = revision.read(PLOTS / "validation.csv").decode("utf-8")
    return Run(
        name=revision.name,
        nats=columns["nats"],
        utf8_bytes=columns["utf8_bytes"],
        sources=columns.get("source"),
        params=preset_names_left_out(revision.params()),
        inputs={path: md5 for path, md5 in inputs.items() if path not in INPUTS_LEFT_OUT},
        tokens_seen=results["last"]["tokens_seen"],
        best_tokens_seen=results["best"]["tokens_seen"],
        num_parameters=results["training"]["parameters"],
        train_seconds=read_timing(results).get("train_seconds"),
        validations=list(csv.DictReader(curve.splitlines())),
        is_lossy="lossy_tokenizer" in results.get("evaluation", {}),
        code={path: revision.files_of(path) for path, md5 in inputs.items() if is_code_folder(path, md5)},
    )


def is_code_folder(path: str, md5: str) -> bool:
    """Return whether an input of a stage is a folder of code."""
    return path.startswith(CODE) and md5.endswith(".dir")


@contextlib.contextmanager
def open_validation(revision: Revision) -> Iterator[tuple[TokenFile, Tokenizer]]:
    """Yield the validation tokens of a revision and their tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (VALIDATION, VALIDATION_SIDECAR, TOKENIZER):
            revision.copy(path, f"{folder}/{path.name}")
        yield open_tokens(f"{folder}/{VALIDATION.name}"), load_tokenizer(f"{folder}/{TOKENIZER.name}")


def write_rates(path: Path, groups: list[Group]) -> None:
    """Write a CSV file with a row for each document: its number, its bytes, and the bits per byte of each group."""
    sizes = groups[0].runs[0].utf8_bytes
    columns = [np.arange(len(sizes)), sizes, *(group.nats / math.log(2) / sizes for group in groups)]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    write_csv(path, ["document", "utf8_bytes", *(group.name for group in groups)], rows)


@exit_with_status
def main(argv: list[str]) -> None:
    """Compare the named runs; write and print the report."""
    args = parse(argv)
    # Read the runs, all on the same documents.
    revisions = [Revision(name) for name in args.names]
    for other in revisions[1:]:
        reject_other_text(revisions[0], other)
    runs = [read_run(revision) for revision in revisions]
    if not all(np.array_equal(runs[0].utf8_bytes, run.utf8_bytes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")
    # Compare each group with the first one; the runs of a single group with its first run.
    groups = group_by_seed(runs)
    sides = groups if len(groups) > 1 else [Group([run]) for run in runs]
    comparisons = compare_with_first(sides, args.seed, args.confidence, args.resamples)
    # Write and print.
    listed = sorted({int(i) for comparison in comparisons for i in comparison.most_changed(args.documents)})
    with open_validation(revisions[0]) as (tokens, tokenizer):
        shown = previews(tokens, tokenizer, document_spans(tokens)[listed])
    lines = report(groups, comparisons, dict(zip(listed, shown, strict=True)), args.documents, args.confidence)
    if args.unfinished:
        lines.insert(2, f"**{unfinished_sentence(args.unfinished)}.**\n")
    write_text(args.out, "\n".join([*lines, ""]))
    write_rates(args.out.with_suffix(".csv"), groups)
    print("\n".join(lines))
    print(f"written: {args.out}, {args.out.with_suffix('.csv').name}")
