"""Whether runs differ: paired on the same validation documents, and beyond the noise of training seeds.

    python src compare main my-experiment
    python src compare main workspace --out comparisons/mine.md
    python src compare base-{1..5} wider-{1..5}

Names are experiments, git revisions, or `workspace` for what lies here; the first is what the others
are held against. Runs that differ only by train.seed form one group. Bits per byte compare across
tokenizers; runs whose validation text differs are refused (4). Prints Markdown and writes it, with a
picture and a CSV of all documents beside it.
"""

import argparse
import dataclasses
import re
import tempfile
from pathlib import Path

import numpy as np

from lm.core.errors import IntegrityError, ParamsError, command
from lm.core.files import write_csv, write_text
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from tools.common.arguments import add_resampling, check_resampling
from tools.common.excerpt import beginning
from tools.common.revisions import SIDECAR, Revision, preset_names_left_out, refuse_other_text
from tools.compare.figure import Panel, draw_comparison
from tools.compare.report import csv_rows, report
from tools.compare.runs import Comparison, Group, Run, compare_groups, group_by_seed, most_changed

LOSSES = "data/evaluation/document_losses.parquet"
VALIDATION = "data/processed_datasets/validation.bin"
TOKENIZER = "data/tokenizer"
METRICS = ("metrics/train.json", "metrics/timing.json")
# Inputs that say nothing of their own: what fetch and audit read, and the model, which is what is compared.
NO_CAUSE_STAGES, NO_CAUSE = ("fetch", "audit"), "data/models"


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="python src compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("names", nargs="+", metavar="NAME", help="two or more experiments, git revisions, or workspace")
    add("--out", type=Path, help="the Markdown file (comparisons/A-vs-B.md, which git ignores)")
    add("--documents", type=int, default=10, help="documents that changed most to list (10)")
    add_resampling(parser, 9999, "documents")
    args = parser.parse_args(argv)
    check_arguments(args)
    return args


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ParamsError for arguments with which nothing can be compared."""
    if len(set(args.names)) < len(args.names) or len(args.names) < 2:
        raise ParamsError(f"{' '.join(args.names)}: needed: at least two names, each once")
    check_resampling(args)
    if args.documents < 0:
        raise ParamsError(f"--documents is {args.documents}, needed: at least 0")
    if args.out is not None and args.out.suffix != ".md":
        raise ParamsError(f"--out is {args.out}, needed: a name that ends in .md")


def default_out(names: list[str]) -> Path:
    """comparisons/A-vs-B.md, with what no file name holds replaced."""
    more = f"-and-{len(names) - 2}-more" if len(names) > 2 else ""
    return Path("comparisons") / (re.sub(r"[^\w.~-]+", "-", f"{names[0]}-vs-{names[1]}{more}") + ".md")


def read_run(revision: Revision) -> Run:
    """What the revision recorded of its model; IntegrityError for losses that are no numbers."""
    losses = revision.read_parquet(LOSSES)
    nats, utf8_bytes, chose = (losses[name].to_numpy() for name in ("nats", "utf8_bytes", "chose_the_model"))
    if not np.isfinite(nats).all():
        raise IntegrityError(f"{revision.name}: {LOSSES} holds losses that are not finite; run `dvc repro -f eval`")
    inputs = revision.inputs(leave_out=NO_CAUSE_STAGES)
    inputs.pop(NO_CAUSE, None)
    figures = {key: value for path in METRICS for key, value in revision.read_json(path).items()}
    return Run(revision.name, nats, utf8_bytes, chose, preset_names_left_out(revision.params()), inputs, figures)


def with_common_bytes(runs: list[Run], revisions: list[Revision]) -> list[Run]:
    """The runs, all with the bytes of the documents' text; IntegrityError if none knows them.

    A tokenizer that is not byte-level may change a text before it encodes it, so that its tokens do
    not stand for exactly the text's bytes; another run's do, if they add up to what was read.
    """
    counts = [run.utf8_bytes for run in runs]
    if len({len(sizes) for sizes in counts}) > 1:
        raise IntegrityError(f"{LOSSES} has {', '.join(str(len(c)) for c in counts)} rows for the same documents")
    if all(np.array_equal(counts[0], sizes) for sizes in counts):
        return runs
    for run, revision in zip(runs, revisions, strict=True):
        if run.utf8_bytes.sum() == revision.read_json(SIDECAR)["utf8_bytes"]:
            return [dataclasses.replace(other, utf8_bytes=run.utf8_bytes) for other in runs]
    raise IntegrityError(
        f"{LOSSES}: the runs count different bytes for the same documents, and none of their tokenizers is byte-level; "
        "name a run with one (bpe, gpt2) as well"
    )


def comparisons_of(groups: list[Group], args: argparse.Namespace) -> list[Comparison]:
    """Each other group against the first; the runs of an only group against its first run."""
    sides = groups if len(groups) > 1 else [Group([run]) for run in groups[0].runs]
    return [compare_groups(sides[0], b, args.seed, args.confidence, args.resamples) for b in sides[1:]]


def beginnings(revision: Revision, documents: list[int]) -> dict[int, str]:
    """How these validation documents begin, decoded from the revision's tokens."""
    with tempfile.TemporaryDirectory() as folder:
        for path, name in ((VALIDATION, "validation.bin"), (SIDECAR, "validation.json"), (TOKENIZER, "tokenizer")):
            revision.copy(path, f"{folder}/{name}")
        tokens, tokenizer = open_tokens(f"{folder}/validation.bin"), load_tokenizer(f"{folder}/tokenizer")
        spans = document_spans(tokens)
        return {document: beginning(tokens, tokenizer, spans[document]) for document in documents}


def panel(comparison: Comparison, percent: str) -> Panel:
    """What the picture shows of a comparison."""
    a, b = comparison.a, comparison.b
    sizes = a.runs[0].utf8_bytes
    return Panel(a.name, b.name, sizes, (b.nats - a.nats) / np.log(2) / sizes, comparison.documents, percent)


@command
def main(argv: list[str]) -> None:
    """Compare the named runs; print and write what was found."""
    args = parse(argv)
    revisions = [Revision(name) for name in args.names]
    for other in revisions[1:]:
        refuse_other_text(revisions[0], other)
    runs = with_common_bytes([read_run(revision) for revision in revisions], revisions)
    groups = group_by_seed(runs)
    comparisons = comparisons_of(groups, args)
    listed = [int(d) for c in comparisons for d in most_changed(c, args.documents)]
    begins = beginnings(revisions[0], sorted(set(listed)))
    percent = f"{100 * args.confidence:g} %"
    lines = report(groups, comparisons, begins, args.documents, percent)
    out = args.out or default_out(args.names)
    print("\n".join(lines))
    draw_comparison(out.with_suffix(".png"), [panel(comparison, percent) for comparison in comparisons])
    write_csv(out.with_suffix(".csv"), *csv_rows(groups))
    picture = ["![Each document's difference](" + out.with_suffix(".png").name + ")", ""]
    write_text(out, "\n".join([*lines, *picture]))
    print(f"written: {out}, {out.with_suffix('.png').name}, {out.with_suffix('.csv').name}")
