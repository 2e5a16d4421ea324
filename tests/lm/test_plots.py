"""Test the pictures of a run: deterministic bytes, the numbers of the metrics, readable ticks."""

from functools import partial

import matplotlib
import numpy as np

from lm.plots import (
    draw_documents,
    draw_gradient_norm,
    draw_learning_rate,
    draw_loss_by_position,
    draw_losses,
    figure_of,
    smooth,
    to_png,
    training_figure,
)

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
PANELS = [
    partial(draw_losses, train=TRAIN, validation=VALIDATION),
    partial(draw_learning_rate, train=TRAIN),
    partial(draw_gradient_norm, train=TRAIN),
    partial(draw_loss_by_position, curve=CURVE),
    partial(draw_documents, documents=DOCUMENTS, clean_below=0.2),
]


def test_equal_data_give_equal_bytes():
    for panel in PANELS:
        first = to_png(figure_of(panel, size=(4, 3)))

        assert first.startswith(b"\x89PNG")
        assert first == to_png(figure_of(panel, size=(4, 3)))


def test_a_style_of_the_user_changes_nothing():
    own = {"font.family": "serif", "lines.linewidth": 9, "savefig.bbox": "tight", "savefig.dpi": 50}
    expected = to_png(training_figure(TRAIN, VALIDATION))

    with matplotlib.rc_context(own):
        assert to_png(training_figure(TRAIN, VALIDATION)) == expected


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

    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        (VALIDATION["tokens"], VALIDATION["val_loss"]),
        (LONG_X, LONG_TRAIN["train_loss"]),
        (LONG_X, smoothed),
    ]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["validation: 3.0100", "training: 3.0500"]
