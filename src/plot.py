"""Stage plot: the curves of training and evaluation → pictures.

    python src/plot.py --validation data/processed_datasets/validation.json --evaluation data/evaluation --plots plots

Pictures are drawn in a stage of their own, so that a change of a colour trains and evaluates nothing.
"""

import argparse
import functools
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

import pyarrow.parquet as pq

from lm import plots
from lm.core.errors import exit_with_status
from lm.tokens.ngrams import CLEAN_BELOW


@exit_with_status
def main(argv: list[str]) -> None:
    """Draw the pictures of a run into the folder of its curves."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = functools.partial(parser.add_argument, type=Path, required=True)
    add("--evaluation", help="folder that eval wrote")
    add("--plots", help="folder of the curves, in which the pictures are drawn")
    args = parser.parse_args(argv)
    draw, folder = functools.partial, args.plots

    # Training: losses, learning rate, gradient norm.
    train, validation, curve = (
        plots.read_csv(folder / f"{name}.csv") for name in ("training", "validation", "loss_by_position")
    )
    plots.save_png(plots.training_figure(train, validation), folder / "training.png")

    # Evaluation: how much context helps, and how much of the loss is explained by contamination.
    by_position, title = draw(plots.draw_loss_by_position, curve=curve), "Loss by length of the context"
    plots.save_png(plots.figure_of(by_position, size=(7.5, 3.6), title=title), folder / "loss_by_position.png")
    table = pq.read_table(args.evaluation / "document_losses.parquet")
    documents = {name: table[name].to_numpy() for name in ("contaminated_fraction", "nats", "utf8_bytes")}
    by_document = draw(plots.draw_documents, documents=documents, clean_below=CLEAN_BELOW)
    title = "Loss and contamination of each validation document (area: its bytes)"
    plots.save_png(plots.figure_of(by_document, size=(7.5, 4.2), title=title), folder / "contamination.png")


if __name__ == "__main__":
    sys.exit(main())
