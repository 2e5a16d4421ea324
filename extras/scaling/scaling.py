"""Fit a scaling law: loss by model size, data and compute over finished experiments, with predictions.

    python src scaling 'scaling-*'
    python src scaling 'scaling-*' --predict 2e7 1e9 --predict_flops 1e17
    python src scaling                            # all experiments of the repository

Fits L(N, D) = E + A / N^α + B / D^β to bits per byte, and a power law of compute to the runs with the least
loss for their compute. As a check, the largest runs are predicted from the others. NAME is an experiment (or
a quoted pattern), a git revision, or `workspace`; runs that were evaluated on different text are refused
(exit code 4). The report is printed and written as Markdown, with a picture and a JSON file beside it.
"""

import argparse
import itertools
import math
from pathlib import Path

import numpy as np

from extras.scaling import law
from extras.scaling.figure import draw_scaling
from extras.scaling.report import Scaling, Wanted, as_json, report
from lm.core.errors import IntegrityError, ParamsError, command
from lm.core.files import write_json, write_text
from tools.common.arguments import add_resampling, check_resampling, tool_parser
from tools.common.parameters import preset_names_left_out
from tools.common.revisions import Revision, matching, refuse_other_text


def parse(argv: list[str]) -> argparse.Namespace:
    parser = tool_parser("scaling", __doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="experiments or 'pattern-*' (all experiments)")
    add("--predict", nargs=2, type=float, action="append", default=[], metavar=("N", "D"),
        help="predict a run of N parameters and D tokens; repeatable")  # fmt: skip
    add("--predict_flops", type=float, action="append", default=[], metavar="C",
        help="predict the best run of C FLOP of training compute; repeatable")  # fmt: skip
    add("--out", type=Path, default=Path("comparisons/scaling"), help="output path without .md, .json, .png")
    add_resampling(parser, 499, "residuals")
    args = parser.parse_args(argv)
    for value in itertools.chain(*args.predict, args.predict_flops):
        if not 1 <= value < math.inf:
            raise ParamsError(f"{value:g} is asked for, needed: a number of parameters, tokens or FLOP, at least 1")
    check_resampling(args)
    return args


def results_of(revision: Revision) -> dict:
    """Return parameters, losses, and tokens and FLOP of the best model; IntegrityError if one was not recorded."""
    results = revision.results()
    values = {**results["training"], **results["evaluation"], "tokens_seen": results["best"].get("tokens_seen")}
    for name in ("parameters", "tokens_seen", "training_flops", "bits_per_byte"):
        if not isinstance(values.get(name), int | float):
            raise IntegrityError(f"{revision.name}: its records have no {name}; run the experiment again")
    # The loss is that of the best model, the recorded FLOP are those of the whole run.
    values["training_flops"] *= results["best"]["tokens_seen"] / results["last"]["tokens_seen"]
    return values


def analyse(revisions: list[Revision], args: argparse.Namespace) -> Scaling:
    """Fit the law and compute everything that is reported; ParamsError if the runs do not determine the law."""
    results = [results_of(revision) for revision in revisions]
    names = ("parameters", "tokens_seen", "training_flops", "bits_per_byte")
    columns = (np.array([values[name] for values in results], dtype=float) for name in names)
    runs = law.Runs([revision.name for revision in revisions], *columns)
    if lacking := law.too_few(runs):
        raise ParamsError(f"the five parameters of the law need more: {lacking}; finish more runs or name more")
    fit, frontier, work = law.fit(runs, args.resamples, args.seed), law.fit_frontier(runs), law.work_law(runs)
    # Predict the runs that were asked for, by size and tokens, then by compute alone.
    k, gamma = work
    sizes = [(n, d, k * n**gamma * d) for n, d in args.predict]
    for flops in args.predict_flops:
        n, d = law.best_split(fit.law, flops, work)
        sizes.append((float(n[0]), float(d[0]), flops))
    wanted = [
        Wanted(n, d, flops, law.predict(fit, n, d, args.confidence, args.seed),
               frontier and frontier.predict(flops, args.confidence))
        for n, d, flops in sizes
    ]  # fmt: skip
    held_back = law.predict_held_back(runs, args.resamples, args.confidence, args.seed)
    entropy = results[0].get("entropy", {}).get("floor_bits_per_byte")
    params = [preset_names_left_out(revision.params()) for revision in revisions]
    varies = [name for name in sorted(set().union(*params)) if len({str(p.get(name)) for p in params}) > 1]
    return Scaling(runs, fit, work, frontier, held_back, wanted, entropy, varies, args.confidence)


@command
def main(argv: list[str]) -> None:
    args = parse(argv)
    revisions = [Revision(name) for name in matching(args.names or ["*"])]
    for other in revisions[1:]:
        refuse_other_text(revisions[0], other)
    scaling = analyse(revisions, args)
    lines = report(scaling)
    markdown, data, picture = (args.out.with_name(args.out.name + suffix) for suffix in (".md", ".json", ".png"))
    draw_scaling(picture, scaling)
    write_json(data, as_json(scaling))
    write_text(markdown, "\n".join([*lines, f"![Loss against compute]({picture.name})", ""]))
    print("\n".join(lines))
    print(f"written: {markdown}, {data.name}, {picture.name}")
