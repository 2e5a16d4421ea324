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
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lm.core.errors import ParamsError, exit_with_status
from lm.core.files import write_csv, write_text
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, document_spans, open_tokens
from tools.common.arguments import add_resampling, check_resampling, count, tool_parser
from tools.common.paths import TOKENIZER, VALIDATION, VALIDATION_SIDECAR
from tools.common.preview import previews
from tools.common.read_runs import read_runs
from tools.common.revisions import Revision, is_pattern, matching, unfinished
from tools.common.runs import Group, compare_with_first, group_by_seed
from tools.compare.report import report


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
    runs = read_runs(revisions)
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
