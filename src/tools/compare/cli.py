"""Compare runs: differences in loss with intervals over documents and seeds.

    python src compare main my-experiment
    python src compare main workspace --out comparisons/mine.md
    python src compare base-{1..5} wider-{1..5}

NAME is an experiment, a git revision, or `workspace` for the files in this folder. The first one is the
baseline. Runs that differ only in train.seed form one group. Bits per byte can be compared across
tokenizers; runs that were evaluated on different text are refused (exit code 4). Of two runs with equal parameters
and data it says until which step they had the same bits. The report is printed and written as Markdown, with a
picture and a CSV file of all documents beside it.
"""

import argparse
import csv
import io
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lm.core.errors import IntegrityError, ParamsError, command
from lm.core.files import write_csv, write_text
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from tools.common.arguments import add_resampling, check_resampling, tool_parser
from tools.common.excerpt import beginning
from tools.common.parameters import preset_names_left_out
from tools.common.paths import DOCUMENT_LOSSES, PLOTS, TOKENIZER, VALIDATION, VALIDATION_SIDECAR
from tools.common.revisions import Revision, refuse_other_text
from tools.common.timing import read_timing
from tools.compare.figure import draw_comparisons
from tools.compare.report import csv_rows, report
from tools.compare.runs import Group, Run, compare_groups, group_by_seed, most_changed

# Inputs that cannot explain a difference: those of stages before and after the model, and what is made from the rest.
NOT_CAUSES = {"stages": ("resolve", "fetch", "select", "audit", "plot"), "paths": ("data/models", "data/audit")}


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; ParamsError if one is out of range."""
    parser = tool_parser("compare", __doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="two or more experiments, git revisions, or workspace")
    parser.add_argument("--out", type=Path, help="the Markdown file (comparisons/A-vs-B.md, which git ignores)")
    parser.add_argument("--documents", type=int, default=10, help="documents that changed most to list (10)")
    add_resampling(parser, 1999, "documents")
    args = parser.parse_args(argv)
    check_resampling(args)
    if len(set(args.names)) < len(args.names) or len(args.names) < 2:
        raise ParamsError(f"{' '.join(args.names)}: needed: at least two names, each once")
    if args.documents < 0:
        raise ParamsError(f"--documents is {args.documents}, needed: at least 0")
    more = f"-and-{len(args.names) - 2}-more" if len(args.names) > 2 else ""
    name = re.sub(r"[^\w.~-]+", "-", f"{args.names[0]}-vs-{args.names[1]}{more}")
    args.out = args.out or Path("comparisons", f"{name}.md")
    if args.out.suffix != ".md":
        raise ParamsError(f"--out is {args.out}, needed: a name that ends in .md")
    return args


def read_run(revision: Revision) -> Run:
    """Read the losses and figures of a run; IntegrityError if a loss is not finite or the run is too old."""
    results = revision.results()
    table = pq.read_table(io.BytesIO(revision.read(DOCUMENT_LOSSES)))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    if not np.isfinite(columns["nats"]).all():
        raise IntegrityError(
            f"{revision.name}: {DOCUMENT_LOSSES} holds losses that are not finite; run `dvc repro -f eval`"
        )
    inputs = revision.hashes("deps", leave_out=NOT_CAUSES["stages"])
    figures = [results["last"]["tokens_seen"], results["best"]["tokens_seen"], results["training"]["parameters"]]
    return Run(
        revision.name, columns["nats"], columns["utf8_bytes"], columns.get("selection_nats"),
        columns.get("selection_bytes"), preset_names_left_out(revision.params()),
        {path: md5 for path, md5 in inputs.items() if path not in NOT_CAUSES["paths"]},
        [*figures, read_timing(results).get("train_seconds")], columns.get("part"),
        list(csv.DictReader(revision.read(PLOTS / "validation.csv").decode("utf-8").splitlines())),
    )  # fmt: skip


def refuse_other_bytes(runs: list[Run]) -> None:
    """Raise IntegrityError unless all runs count the same bytes for the same documents."""
    if not all(np.array_equal(runs[0].utf8_bytes, run.utf8_bytes) for run in runs):
        raise IntegrityError(f"{DOCUMENT_LOSSES}: the runs count different bytes per document; run `dvc repro -f eval`")


def beginnings(revision: Revision, documents: list[int]) -> dict[int, str]:
    """Return the first characters of these validation documents, decoded from the revision's tokens."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (VALIDATION, VALIDATION_SIDECAR, TOKENIZER):
            revision.copy(path, f"{folder}/{path.name}")
        tokens, tokenizer = open_tokens(f"{folder}/{VALIDATION.name}"), load_tokenizer(f"{folder}/{TOKENIZER.name}")
        spans = document_spans(tokens)
        return {document: beginning(tokens, tokenizer, spans[document]) for document in documents}


@command
def main(argv: list[str]) -> None:
    """Compare the named runs; write and print the report."""
    args = parse(argv)
    # Read the runs, all on the same documents.
    revisions = [Revision(name) for name in args.names]
    for other in revisions[1:]:
        refuse_other_text(revisions[0], other)
    runs = [read_run(revision) for revision in revisions]
    refuse_other_bytes(runs)
    # Compare each group with the first one; the runs of a single group with its first run.
    groups = group_by_seed(runs)
    sides = groups if len(groups) > 1 else [Group([run]) for run in runs]
    comparisons = [compare_groups(sides[0], b, args.seed, args.confidence, args.resamples) for b in sides[1:]]
    # Write and print.
    documents = sorted({int(d) for comparison in comparisons for d in most_changed(comparison, args.documents)})
    percent = f"{100 * args.confidence:g} %"
    lines = report(groups, comparisons, beginnings(revisions[0], documents), args.documents, percent)
    picture, table = args.out.with_suffix(".png"), args.out.with_suffix(".csv")
    draw_comparisons(picture, comparisons, percent)
    write_csv(table, *csv_rows(groups))
    write_text(args.out, "\n".join([*lines, f"![Difference of each document]({picture.name})", ""]))
    print("\n".join(lines))
    print(f"written: {args.out}, {picture.name}, {table.name}")
