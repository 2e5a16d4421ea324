"""A picture of the differences with their intervals."""

from pathlib import Path

import numpy as np

from evidence.answer import percent_of
from evidence.difference import DOCUMENTS, SEEDS, Comparisons
from evidence.errors import WrongInput


def forest(found: Comparisons, path: Path) -> None:
    """Write a forest plot: a row for each group, its intervals over seeds and over documents, and a line at zero."""
    try:
        from matplotlib.figure import Figure  # only this picture needs it
    except ImportError:
        raise WrongInput("--plot needs matplotlib: pip install matplotlib") from None
    if not found.differences:
        raise WrongInput("--plot draws differences; it needs two groups or more")

    rows = np.arange(len(found.differences))
    figure = Figure((7, 1.5 + 0.6 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for basis, offset, marker, color in ((SEEDS, -0.13, "o", "black"), (DOCUMENTS, 0.13, "s", "0.5")):
        estimates = [each.seeds if basis == SEEDS else each.documents for each in found.differences]
        values = np.array([each.value if each.low is not None else np.nan for each in estimates])  # not drawn
        if np.isnan(values).all():
            continue
        ends = np.array([(each.low, each.high) for each in estimates], float).T
        axes.errorbar(values, rows + offset, xerr=abs(ends - values), fmt=marker, color=color, label=f"over {basis}")

    measure = found.groups[0].runs[0].measure
    axes.set_xlabel(f"difference from {found.groups[0].name} in {measure.unit} ({measure.better} is better)")
    axes.set_yticks(rows, [each.b.name for each in found.differences])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(title=f"{percent_of(found.options.confidence)} interval", loc="outside right upper")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise WrongInput(f"--plot is {path}: {error}") from None
