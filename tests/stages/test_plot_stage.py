"""Stage plot: each picture shows the file that it is named after."""

from pathlib import Path

import numpy as np

from lm import plots
from support.stages import run_here, work_in_copy


def test_each_picture_shows_its_table(pipeline, tmp_path, monkeypatch):
    work_in_copy(monkeypatch, pipeline, tmp_path / "project")
    names = ("training", "validation", "loss_by_position")
    tables = {name: plots.read_csv(Path(f"plots/{name}.csv")) for name in names}
    axes = {}
    monkeypatch.setattr(plots, "save_png", lambda figure, path: axes.update({path.name: figure.axes}))

    assert run_here("plot") == 0

    assert list(axes) == ["training.png", "optimization.png", "loss_by_position.png", "contamination.png"]
    validation_loss, training_loss, *_ = axes["training.png"][0].lines
    learning_rate, gradient_norm = axes["optimization.png"]
    shown = [
        (validation_loss, "validation", "tokens", "val_loss"),
        (training_loss, "training", "tokens", "train_loss"),
        (learning_rate.lines[0], "training", "tokens", "lr"),
        (gradient_norm.lines[0], "training", "tokens", "grad_norm"),
        (axes["loss_by_position.png"][0].lines[0], "loss_by_position", "context_tokens", "nats_per_token"),
    ]
    for line, table, x, y in shown:
        assert np.array_equal(line.get_xydata().T, [tables[table][x], tables[table][y]]), y
