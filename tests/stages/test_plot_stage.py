"""Stage plot: each picture shows the file that it is named after."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plot
from lm.core.files import PARQUET, write_csv

TRAINING = [[1, 512, 0.1, 5.0, 2.0], [2, 1024, 0.3, 4.0, 1.0], [3, 1536, 0.2, 3.5, 0.5]]
VALIDATION = [[0, 0, 6.0, "ab"], [3, 1536, 3.75, "cd"]]
POSITIONS = [[1, 5.0, 9], [2, 4.5, 9], [4, 4.25, 18]]
DOCUMENTS = {"contaminated_fraction": [0.0, 0.5], "nats": [100.0, 50.0], "utf8_bytes": [100, 80]}


@pytest.fixture
def figures(tmp_path, monkeypatch):
    """The figures of the stage by the names of their files."""
    monkeypatch.chdir(tmp_path)
    write_csv(Path("plots/training.csv"), ["step", "tokens", "lr", "train_loss", "grad_norm"], TRAINING)
    write_csv(Path("plots/validation.csv"), ["step", "tokens", "val_loss", "checkpoint_digest"], VALIDATION)
    write_csv(Path("plots/loss_by_position.csv"), ["context_tokens", "nats_per_token", "tokens"], POSITIONS)
    Path("evaluation").mkdir()
    pq.write_table(pa.table(DOCUMENTS), "evaluation/document_losses.parquet", **PARQUET)
    figures = {}
    monkeypatch.setattr(plot.plots, "save_png", lambda figure, path: figures.update({path.as_posix(): figure}))
    assert plot.main(["--evaluation", "evaluation", "--plots", "plots"]) == 0
    return figures


def curves(axes) -> list[list[list[float]]]:
    return [[list(line.get_xdata()), list(line.get_ydata())] for line in axes.lines]


def test_each_picture_shows_its_file(figures):
    names = ("training", "optimization", "loss_by_position", "contamination")
    assert list(figures) == [f"plots/{name}.png" for name in names]
    training, optimization, positions, contamination = figures.values()
    losses = curves(training.axes[0])[0]
    validation = curves(training.axes[0])[-1]
    assert losses == [[512, 1024, 1536], [5.0, 4.0, 3.5]]
    assert validation == [[0, 1536], [6.0, 3.75]]
    learning_rate, gradient_norm = optimization.axes
    assert curves(learning_rate)[0] == [[512, 1024, 1536], [0.1, 0.3, 0.2]]
    assert curves(gradient_norm)[0] == [[512, 1024, 1536], [2.0, 1.0, 0.5]]
    assert curves(positions.axes[0]) == [[[1, 2, 4], [5.0, 4.5, 4.25]]]
    assert [len(group.get_offsets()) for group in contamination.axes[0].collections] == [1, 1]


def test_the_limit_of_clean_documents_is_drawn(figures):
    """Documents of less than a fifth of contaminated tokens are clean, as in metrics/eval.json."""
    axes = figures["plots/contamination.png"].axes[0]
    (limit,) = axes.lines
    assert np.array_equal(limit.get_xdata(), [0.2, 0.2])
    labels = [text.get_text().split(",")[0] for text in axes.get_legend().get_texts()]
    assert labels == ["clean: 1 documents", "not clean: 1 documents"]
