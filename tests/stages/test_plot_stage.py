"""Stage plot: each picture shows the file that it is named after."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import plot
from lm.core.files import PARQUET, write_csv

TRAINING = [[1, 512, 0.1, 5.0, 2.0], [2, 1024, 0.3, 4.0, 1.0]]
VALIDATION = [[0, 0, 6.0, "ab"], [2, 1024, 3.75, "cd"]]
POSITIONS = [[1, 5.0, 9], [2, 4.5, 9]]
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


def curves(axes) -> list[list[tuple[float, float]]]:
    """Return the points (x, y) of each line."""
    return [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]


def test_each_picture_shows_its_table(figures):
    assert list(figures) == [
        f"plots/{name}.png" for name in ("training", "optimization", "loss_by_position", "contamination")
    ]
    (losses,) = figures["plots/training.png"].axes
    learning_rate, gradient_norm = figures["plots/optimization.png"].axes
    by_position = figures["plots/loss_by_position.png"].axes[0]

    validation, training, _ = curves(losses)
    assert training == [(512, 5.0), (1024, 4.0)]
    assert validation == [(0, 6.0), (1024, 3.75)]
    assert curves(learning_rate)[0] == [(512, 0.1), (1024, 0.3)]
    assert curves(gradient_norm)[0] == [(512, 2.0), (1024, 1.0)]
    assert curves(by_position) == [[(1, 5.0), (2, 4.5)]]
