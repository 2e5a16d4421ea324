"""Stage plot: the curves of training and evaluation → pictures.

    python src/plot.py --evaluation data/evaluation --plots plots

Pictures are drawn in a stage of their own, so that a change of a colour trains and evaluates nothing.
"""

import argparse
import functools
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm import plots
from lm.core.errors import exit_with_status
from lm.core.files import read_parquet
from lm.tokens.ngrams import CLEAN_BELOW


@exit_with_status
def main(argv: list[str]) -> None:
    """Draw the pictures of a run into the folder of its curves."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--evaluation", type=Path, required=True, help="folder that eval wrote")
    parser.add_argument("--plots", type=Path, required=True, help="folder of the curves, in which pictures are drawn")
    args = parser.parse_args(argv)
    folder = args.plots

    # Training: losses, learning rate, gradient norm.
    train = plots.read_csv(folder / "training.csv")
    validation = plots.read_csv(folder / "validation.csv")
    plots.save_png(plots.training_figure(train, validation), folder / "training.png")
    plots.save_png(plots.optimization_figure(train), folder / "optimization.png")

    # Evaluation: how much context helps.
    curve = plots.read_csv(folder / "loss_by_position.csv")
    draw = functools.partial(plots.draw_loss_by_position, curve=curve)
    figure = plots.figure_of(draw, size=(7.5, 3.6), title="Loss by length of the context")
    plots.save_png(figure, folder / "loss_by_position.png")

    # Evaluation: how much of the loss is explained by contamination.
    table = read_parquet(args.evaluation / "document_losses.parquet")
    documents = {name: table[name].to_numpy() for name in ("contaminated_fraction", "nats", "utf8_bytes")}
    draw = functools.partial(plots.draw_documents, documents=documents, clean_below=CLEAN_BELOW)
    title = "Loss and contamination of each validation document (area: its bytes)"
    plots.save_png(plots.figure_of(draw, size=(7.5, 4.2), title=title), folder / "contamination.png")


if __name__ == "__main__":
    sys.exit(main())
