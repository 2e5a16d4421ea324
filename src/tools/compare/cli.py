"""Compare runs: differences in loss with intervals over documents and seeds; or show the noise of one configuration.

    python src compare main my-experiment
    python src compare base-{1..5} wider-{1..5}
    python src compare 'seeds-*'
    python src compare main workspace --within 0.005
    python src compare main workspace --json --require better
    python src compare losses.csv

NAME is an experiment, a quoted pattern of experiments such as 'w-*', a git revision, `workspace` for the files in this
folder, or a table of losses (.csv, .tsv or .parquet, docs/evidence.md). The first is the baseline. Runs that differ
only in train.seed form one group; a single group gives its noise. If two groups share two seeds or more, only these
are compared. Tokenizers may differ. Runs evaluated on different text are rejected (exit code 4).

With two seeds or more on each side, the verdict is about the settings. Otherwise it is about the trained models:
another seed may reverse it. The answer comes first; --json has all figures.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from evidence import read
from evidence.command import add_options, compare_tables, options_of, show
from evidence.difference import compare, reject_wrong_options
from evidence.errors import EvidenceError, WrongInput
from evidence.runs import Group, Run
from evidence.table import reject_other_documents
from lm.core.errors import ParamsError, exit_with_status
from tools.compare.answer import documents_and_code, groups_to_extend, summary
from tools.compare.facts import as_in_yaml
from tools.compare.record import record
from tools.compare.seeds import START, free_name, missing_seeds, pattern_of, queue_commands
from tools.record.arguments import tool_parser
from tools.record.committed import changed_parameters
from tools.record.lock import read_lock
from tools.record.revision import WORKSPACE, Revision, experiment_names, is_pattern, matching, unfinished
from tools.record.run import Facts, read_runs

TABLES = (".csv", ".tsv", ".parquet")


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; WrongInput if one is out of range."""
    parser = tool_parser("compare", __doc__)
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="experiments, patterns, git revisions, workspace, or tables"
    )
    add_options(parser)
    args = parser.parse_args(argv)
    reject_wrong_options(options_of(args))
    args.tables = [Path(name) for name in args.names if Path(name).suffix in TABLES]
    return args


def unfinished_sentence(states: dict[str, str]) -> str:
    """Return a sentence that names the runs left out as unfinished, "" without any. states: name → state."""
    if not states:
        return ""
    runs = ", ".join(f"{name} ({state})" for name, state in states.items())
    return f"Not finished, so not compared: {runs}."


def commands_for_more_seeds(sides: list[Group], facts: Mapping[str, Facts], given: list[str]) -> list[str]:
    """Return the commands that run the missing seeds of the sides, and compare again; [] if none is missing.

    All sides get the same seeds. given: the names of this comparison.
    """
    taken = experiment_names() if sides else []
    of_all = [side.seeds for side in sides]
    commands = []
    names = []
    for side in sides:
        seeds = missing_seeds(side.seeds, of_all)
        if seeds:
            first = side.runs[0].name
            name = free_name(first, taken)
            taken.append(name)
            names.append(pattern_of(name, seeds))
            commands += queue_commands(first, facts[first].params, facts[first].inputs, seeds, name)
    if not commands:
        return []
    return [*commands, START, shlex.join(["python", "src", "compare", *given, *names])]


def unrun_parameters(names: list[str]) -> str:
    """Return a warning if the workspace is compared, and the files here have other parameters than its run; or ""."""
    if WORKSPACE not in names:
        return ""
    changed = [
        f"{each.name} {as_in_yaml(each.committed)} → {as_in_yaml(each.now)}" for each in changed_parameters(read_lock())
    ]
    if not changed:
        return ""
    return f"{WORKSPACE} is the last run, and {', '.join(changed)} changed since; `dvc repro` computes it"


def read_tables_and_runs(args: argparse.Namespace) -> list[Run]:
    """Return the runs of the tables and of the revisions among the names, in this order unless a revision is first.

    Raise WrongInput unless tables and revisions number their documents alike.
    """
    of_tables = read(args.tables)
    names = [name for name in args.names if Path(name) not in args.tables]
    if not names:
        return of_tables
    recorded, _ = read_runs([Revision(name) for name in matching(names)])
    numbers = [str(i) for i in range(len(recorded[0].sizes))]
    if list(of_tables[0].documents) != numbers:
        raise WrongInput(f"{args.tables[0]}: its documents must be 0 to {numbers[-1]}, as those of {names[0]}")
    reject_other_documents(args.tables[0], recorded[0], of_tables[0])
    is_first = args.names[0] == names[0]
    return [*recorded, *of_tables] if is_first else [*of_tables, *recorded]


def compare_revisions(args: argparse.Namespace) -> int:
    """Compare recorded runs, and print the answer. Return the status of `show`."""
    patterns = [name for name in args.names if is_pattern(name)]
    waiting = unfinished(patterns) if patterns else {}
    names = matching(args.names)
    revisions = [Revision(name) for name in names]
    runs, facts = read_runs(revisions)
    found = compare(runs, options_of(args))
    commands = commands_for_more_seeds(groups_to_extend(found), facts, args.names)

    if unrun := unrun_parameters(names):
        print(f"warning: {unrun}", file=sys.stderr)
    content = record(found, facts)
    content["unfinished"] = [{"name": name, "state": state} for name, state in waiting.items()]
    content["commands_for_more_seeds"] = commands
    lines = summary(found, facts, commands, unfinished_sentence(waiting))
    is_cited = args.cite or args.latex
    return show(args, found, content, "\n".join(lines), *(documents_and_code(revisions) if is_cited else ()))


@exit_with_status
def main(argv: list[str]) -> int:
    """Compare the named runs; return the exit status."""
    try:
        args = parse(argv)
        return compare_tables(args, read_tables_and_runs(args)) if args.tables else compare_revisions(args)
    except EvidenceError as error:
        raise ParamsError(str(error)) from None
