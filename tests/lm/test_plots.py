"""Test the pictures of a run: deterministic bytes, the numbers of the metrics, readable ticks."""

import hashlib
import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from lm.plots import (
    draw_documents,
    draw_gradient_norm,
    draw_learning_rate,
    draw_loss_by_position,
    draw_losses,
    figure_of,
    optimization_figure,
    smooth,
    to_png,
    training_figure,
)
from support import ROOT

TOKENS = [1000.0, 2000.0, 3000.0]
TRAIN = {"tokens": TOKENS, "lr": [0.1, 0.2, 0.0], "train_loss": [5.0, 4.0, 3.0], "grad_norm": [2.0, 1.0, 0.5]}
VALIDATION = {"tokens": [0.0, 3000.0], "val_loss": [9.0, 3.01]}
# Two clean documents, one at the limit, and one without text.
DOCUMENTS = {
    "contaminated_fraction": np.array([0.0, 0.1, 0.2, 1.0]),
    "nats": np.array([100.0, 30.0, 50.0, 1.0]),
    "utf8_bytes": np.array([100, 20, 80, 0]),
}
CURVE = {"context_tokens": [1, 2, 4], "nats_per_token": [5.0, 4.0, 3.0]}
PANELS = {
    "losses": partial(draw_losses, train=TRAIN, validation=VALIDATION),
    "learning_rate": partial(draw_learning_rate, train=TRAIN),
    "gradient_norm": partial(draw_gradient_norm, train=TRAIN),
    "position": partial(draw_loss_by_position, curve=CURVE),
    "documents": partial(draw_documents, documents=DOCUMENTS, clean_below=0.2),
}


@pytest.mark.parametrize("panel", PANELS)
def test_equal_data_give_equal_bytes(panel):
    first = to_png(figure_of(PANELS[panel], size=(4, 3)))
    second = to_png(figure_of(PANELS[panel], size=(4, 3)))

    assert first.startswith(b"\x89PNG")
    assert first == second


DRAW_ELSEWHERE = """
import hashlib, json, sys
from lm import plots
train, validation = json.loads(sys.argv[1])
print(hashlib.sha256(plots.to_png(plots.training_figure(train, validation))).hexdigest())
"""


OWN_STYLE = """
font.family: serif
font.size: 20
lines.linewidth: 9
savefig.bbox: tight
savefig.dpi: 50
axes.facecolor: black
image.cmap: gray
axes.unicode_minus: False
"""


def test_a_matplotlibrc_of_the_user_changes_nothing(tmp_path):
    own = tmp_path / "matplotlibrc"
    own.write_text(OWN_STYLE)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MATPLOTLIBRC": str(own)}
    command = [sys.executable, "-c", DRAW_ELSEWHERE, json.dumps([TRAIN, VALIDATION])]

    drawn = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    here = to_png(training_figure(TRAIN, VALIDATION))
    assert drawn.stdout.strip() == hashlib.sha256(here).hexdigest()


def lines_of(axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def names_in(axes) -> list[str]:
    """Return the entries of the legend."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


# So many points that smoothed curves differ from the others.
LONG_X = [1000.0 * (1 + i) for i in range(60)]
LONG_TRAIN = {
    "tokens": LONG_X,
    "lr": [0.1 - 0.001 * i for i in range(60)],
    "train_loss": [5.0 - i / 20 + i % 2 for i in range(60)],
    "grad_norm": [2.0 + i / 20 + i % 2 for i in range(60)],
}


def test_losses_are_drawn_against_tokens_with_the_values_of_the_metrics():
    smoothed = smooth(LONG_TRAIN["train_loss"]).tolist()

    (axes,) = training_figure(LONG_TRAIN, VALIDATION).axes

    assert lines_of(axes) == [
        (VALIDATION["tokens"], VALIDATION["val_loss"]),
        (LONG_X, LONG_TRAIN["train_loss"]),
        (LONG_X, smoothed),
    ]
    assert names_in(axes) == ["validation: 3.0100", "training: 3.0500"]


@pytest.mark.parametrize(
    ("norms", "labels"),
    [
        ([1.25, 1.05, 0.75], ["0.8", "0.9", "1", "1.1", "1.2"]),
        ([0.1, 5.0, 100.0], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"]),
    ],
)
def test_gradient_norms_have_plain_ticks_in_any_range(norms, labels):
    figure = optimization_figure(TRAIN | {"grad_norm": norms})
    figure.draw_without_rendering()

    axes = figure.axes[1]
    low, high = axes.get_ylim()
    shown = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert shown == labels


def test_small_contaminated_fractions_have_exact_ticks():
    """A tick of 2.5 % is not labelled 2 %."""
    documents = DOCUMENTS | {"contaminated_fraction": np.array([0.0, 0.02, 0.17, 0.2])}
    figure = figure_of(partial(draw_documents, documents=documents), size=(7.5, 4.2))
    figure.draw_without_rendering()

    (axes,) = figure.axes
    texts = [label.get_text().removesuffix(" %").replace("\N{MINUS SIGN}", "-") for label in axes.get_xticklabels()]
    labels = [float(text) for text in texts]
    assert labels == pytest.approx((100 * axes.get_xticks()).tolist())
    assert any(label % 1 for label in labels)
