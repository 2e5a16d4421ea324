"""Stage plot: each picture shows the file that it is named after."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import plot
from lm.core.files import PARQUET, write_csv

TRAINING = [[1, 512, 0.1, 5.0, 2.0], [2, 1024, 0.3, 4.0, 1.0]]
VALIDATION = [[0, 0, 6.0, "ab"], [2, 1024, 3.75, "cd"]]
POSITIONS = [[1, 5.0, 9], [2, 4.5, 9]]
DOCUMENTS = {"contaminated_fraction": [0.0, 0.5], "nats": [100.0, 50.0], "utf8_bytes": [100, 80]}


def points(axes, line: int = 0) -> list[tuple[float, float]]:
    """Return the points (x, y) of a line."""
    return list(zip(axes.lines[line].get_xdata(), axes.lines[line].get_ydata(), strict=True))


def test_each_picture_shows_its_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("plots/training.csv"), ["step", "tokens", "lr", "train_loss", "grad_norm"], TRAINING)
    write_csv(Path("plots/validation.csv"), ["step", "tokens", "val_loss", "checkpoint_digest"], VALIDATION)
    write_csv(Path("plots/loss_by_position.csv"), ["context_tokens", "nats_per_token", "tokens"], POSITIONS)
    Path("evaluation").mkdir()
    pq.write_table(pa.table(DOCUMENTS), "evaluation/document_losses.parquet", **PARQUET)
    axes = {}
    monkeypatch.setattr(plot.plots, "save_png", lambda figure, path: axes.update({path.name: figure.axes}))

    assert plot.main(["--evaluation", "evaluation", "--plots", "plots"]) == 0

    assert list(axes) == ["training.png", "optimization.png", "loss_by_position.png", "contamination.png"]
    (losses,) = axes["training.png"]
    learning_rate, gradient_norm = axes["optimization.png"]
    assert points(losses, 0) == [(0, 6.0), (1024, 3.75)]
    assert points(losses, 1) == [(512, 5.0), (1024, 4.0)]
    assert points(learning_rate) == [(512, 0.1), (1024, 0.3)]
    assert points(gradient_norm) == [(512, 2.0), (1024, 1.0)]
    assert points(axes["loss_by_position.png"][0]) == [(1, 5.0), (2, 4.5)]
