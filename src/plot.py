"""Stage plot: the curves of training and evaluation → pictures.

    python src/plot.py --evaluation data/evaluation --plots plots

Drawing is a separate stage, so that a new colour does not train or evaluate again.
"""

import argparse
import functools
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before NumPy

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

from lm import plots
from lm.core.errors import exit_with_status
from lm.core.files import read_parquet
from lm.core.inputs import StageInputs
from lm.tokens.ngrams import CLEAN_BELOW


@exit_with_status
def main(argv: list[str]) -> None:
    """Draw the pictures of a run into the folder of its curves."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--evaluation", type=Path, required=True, help="folder that eval wrote")
    parser.add_argument("--plots", type=Path, required=True, help="folder of the curves, in which pictures are drawn")
    args = parser.parse_args(argv)
    inputs = StageInputs("plot")
    folder = args.plots
    pictures = {}

    # Training: losses, learning rate, gradient norm.
    train = plots.read_csv(folder / "training.csv")
    validation = plots.read_csv(folder / "validation.csv")
    pictures["training"] = plots.training_figure(train, validation)
    pictures["optimization"] = plots.optimization_figure(train)

    # Evaluation: how much context helps.
    curve = plots.read_csv(folder / "loss_by_position.csv")
    draw = functools.partial(plots.draw_loss_by_position, curve=curve)
    title = "Loss by length of the context"
    pictures["loss_by_position"] = plots.figure_of(draw, size=(7.5, 3.6), title=title)

    # Evaluation: how much of the loss is explained by contamination.
    table = read_parquet(args.evaluation / "document_losses.parquet")
    documents = {name: table[name].to_numpy() for name in ("contaminated_fraction", "nats", "utf8_bytes")}
    draw = functools.partial(plots.draw_documents, documents=documents, clean_below=CLEAN_BELOW)
    title = "Loss and contamination of each validation document (area: its bytes)"
    pictures["contamination"] = plots.figure_of(draw, size=(7.5, 4.2), title=title)

    # Write the pictures.
    inputs.check_unchanged()
    for name, figure in pictures.items():
        plots.save_png(figure, folder / f"{name}.png")
