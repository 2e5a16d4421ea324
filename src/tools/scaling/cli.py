"""How the loss falls with size, data and compute over finished experiments, and what a larger run would reach.

    python src scaling 'scaling-*'
    python src scaling 'scaling-*' --predict 2e7 1e9 --predict_flops 1e17
    python src scaling                            # all experiments of the repository

Fits L(N, D) = E + A / N^α + B / D^β to bits per byte, and a power law to the runs with the least loss for
their compute; predicts the largest runs from the others, always. Names are experiments (patterns in
quotes), git revisions, or `workspace`; runs whose validation text differs are refused (4). Prints
Markdown and writes it, with a picture and a JSON file beside it.
"""

import argparse
import fnmatch
import itertools
import math
from pathlib import Path

import numpy as np

from lm.core.errors import IntegrityError, ParamsError, command
from lm.core.files import write_json, write_text
from tools.common.arguments import add_resampling, check_resampling
from tools.common.revisions import Revision, experiments, preset_names_left_out, refuse_other_text
from tools.scaling.figure import draw_scaling
from tools.scaling.law import (
    Fit,
    Frontier,
    Runs,
    best_split,
    fit,
    fit_frontier,
    predict,
    predict_held_back,
    too_few,
    work_law,
)
from tools.scaling.report import Scaling, Wanted, as_json, report

TRAIN, EVAL = "metrics/train.json", "metrics/eval.json"


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="python src scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments, also as 'pattern-*'; none: all of the repository")
    add("--predict", nargs=2, type=float, action="append", default=[], metavar=("N", "D"),
        help="a run of N parameters and D tokens; may be given again")  # fmt: skip
    add("--predict_flops", "--predict-flops", type=float, action="append", default=[], metavar="C",
        help="the best run of that much training compute; may be given again")  # fmt: skip
    add("--out", type=Path, default=Path("comparisons/scaling"), help="the files to write, less .md, .json and .png")
    add_resampling(parser, 499, "residuals")
    args = parser.parse_args(argv)
    check_arguments(args)
    return args


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ParamsError for arguments with which nothing can be fitted."""
    for value in itertools.chain(*args.predict, args.predict_flops):
        if not 1 <= value < math.inf:
            raise ParamsError(f"{value:g} is asked for, needed: a number of parameters, tokens or FLOP, at least 1")
    check_resampling(args)


def chosen(patterns: list[str]) -> list[str]:
    """The names that the patterns mean, each once; ParamsError for a pattern without any."""
    names: list[str] = []
    for pattern in patterns or ["*"]:
        found = [pattern]
        if any(letter in pattern for letter in "*?["):
            found = fnmatch.filter(experiments(), pattern)
        if not found:
            raise ParamsError(f"{pattern}: no finished experiment has such a name; `dvc exp list -A` names them")
        names += found
    return list(dict.fromkeys(names))


def figures_of(revisions: list[Revision]) -> tuple[list[dict], list[dict]]:
    """What train and eval recorded of each; IntegrityError for what an older version did not record."""
    needed = {TRAIN: ("parameters", "tokens_seen", "training_flops"), EVAL: ("bits_per_byte", "bits_per_byte_se")}
    found: dict[str, list[dict]] = {path: [revision.read_json(path) for revision in revisions] for path in needed}
    for path, keys in needed.items():
        for revision, figures in zip(revisions, found[path], strict=True):
            lacking = [key for key in keys if not isinstance(figures.get(key), int | float)]
            if lacking:
                raise IntegrityError(f"{revision.name}: {path} has no {lacking[0]}; run the experiment again")
    return found[TRAIN], found[EVAL]


def read_runs(revisions: list[Revision], trained: list[dict], evaluated: list[dict]) -> Runs:
    """The runs' arrays; ParamsError where they do not determine the law."""
    columns = [[figures[key] for figures in trained] for key in ("parameters", "tokens_seen", "training_flops")]
    columns.append([figures["bits_per_byte"] for figures in evaluated])
    runs = Runs([revision.name for revision in revisions], *(np.array(column, dtype=float) for column in columns))
    lacking = too_few(runs)
    if lacking:
        raise ParamsError(f"the five parameters of the law need more: {lacking}; finish more runs or name more")
    return runs


def varying(revisions: list[Revision]) -> list[str]:
    """The parameters, presets' names left out, that are not the same in all runs."""
    params = [preset_names_left_out(revision.params()) for revision in revisions]
    names = sorted(set().union(*params))
    return [name for name in names if any(other.get(name) != params[0].get(name) for other in params)]


def wanted(args: argparse.Namespace, found: Fit, frontier: Frontier | None, work: tuple[float, float]) -> list[Wanted]:
    """The runs asked for, by size and tokens, then by compute alone."""
    k, gamma = work
    sizes = [(n, d, k * n**gamma * d) for n, d in args.predict]
    for flops in args.predict_flops:
        n, d = best_split(found.law, flops, work)
        sizes.append((float(n[0]), float(d[0]), flops))
    return [
        Wanted(n, d, flops, predict(found, n, d, args.confidence, args.seed),
               frontier and frontier.predict(flops, args.confidence))
        for n, d, flops in sizes
    ]  # fmt: skip


def analyse(revisions: list[Revision], args: argparse.Namespace) -> Scaling:
    """Everything that is written of the revisions."""
    trained, evaluated = figures_of(revisions)
    runs = read_runs(revisions, trained, evaluated)
    law, frontier, work = fit(runs, args.resamples, args.seed), fit_frontier(runs), work_law(runs)
    return Scaling(
        runs=runs,
        fit=law,
        work=work,
        frontier=frontier,
        held_back=predict_held_back(runs, args.resamples, args.confidence, args.seed),
        wanted=wanted(args, law, frontier, work),
        known_floor=evaluated[0].get("entropy", {}).get("floor_bits_per_byte"),
        standard_error=evaluated[int(np.argmax(runs.flops))]["bits_per_byte_se"],
        varies=varying(revisions),
        confidence=args.confidence,
    )


@command
def main(argv: list[str]) -> None:
    """Fit the law to the named runs; print and write what was found."""
    args = parse(argv)
    revisions = [Revision(name) for name in chosen(args.names)]
    for other in revisions[1:]:
        refuse_other_text(revisions[0], other)
    found = analyse(revisions, args)
    lines = report(found)
    print("\n".join(lines))
    markdown, figures, picture = (args.out.with_name(args.out.name + suffix) for suffix in (".md", ".json", ".png"))
    draw_scaling(picture, found)
    write_json(figures, as_json(found))
    write_text(markdown, "\n".join([*lines, f"![Loss against compute]({picture.name})", ""]))
    print(f"written: {markdown}, {figures.name}, {picture.name}")
