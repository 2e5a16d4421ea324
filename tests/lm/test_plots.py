"""Test the pictures of a run: deterministic bytes, readable ticks, labels that do not overlap."""

import hashlib
import itertools
import json
import math
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
    read_csv,
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


def axes_of(panel: str):
    """Return the axes of a picture of one panel, 4 by 3 inches."""
    (axes,) = figure_of(PANELS[panel], size=(4, 3)).axes
    return axes


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


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_names_its_axes(panel):
    axes = axes_of(panel)

    assert axes.get_xlabel() != ""
    assert axes.get_ylabel() != ""


def test_of_panels_above_each_other_the_lowest_names_the_x_axis():
    upper, lower = optimization_figure(TRAIN).axes

    assert upper.get_xlabel() == ""
    assert lower.get_xlabel() == "tokens seen"
    assert upper.get_ylabel() != ""
    assert lower.get_ylabel() != ""


@pytest.mark.parametrize(
    ("losses", "title"),
    [
        ([9.0], "Loss during training"),
        ([9.0, 5.0, 3.268], "The validation loss falls to 3.27 nats per token"),
        ([9.0, 3.268, 5.0], "The validation loss is lowest after 1k tokens: 3.27 nats per token"),
    ],
)
def test_the_title_says_what_the_validation_losses_show(losses, title):
    tokens = [1000.0 * i for i in range(len(losses))]

    (axes,) = training_figure({}, {"tokens": tokens, "val_loss": losses}).axes

    assert axes.get_title("left") == title


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


def test_the_lowest_validation_loss_is_named_if_it_is_not_the_last():
    (axes,) = training_figure({}, {"tokens": TOKENS, "val_loss": [9.0, 3.01, 4.0]}).axes

    assert names_in(axes) == ["validation: lowest 3.0100"]


def test_the_committed_run_is_drawn_thin_below_this_one():
    committed = {"tokens": [0.0, 2000.0], "val_loss": [9.0, 4.0]}

    (axes,) = training_figure(TRAIN, VALIDATION, committed=(LONG_TRAIN, committed)).axes

    smoothed = smooth(LONG_TRAIN["train_loss"]).tolist()
    assert lines_of(axes)[:2] == [(LONG_X, smoothed), (committed["tokens"], committed["val_loss"])]
    assert all(line.get_linewidth() < 1 for line in axes.lines[:2])


def test_the_learning_rate_and_the_gradient_are_drawn_against_tokens():
    learning_rate, gradient_norm = optimization_figure(LONG_TRAIN).axes

    assert lines_of(learning_rate) == [(LONG_X, LONG_TRAIN["lr"])]
    assert lines_of(gradient_norm) == [
        (LONG_X, LONG_TRAIN["grad_norm"]),
        (LONG_X, smooth(LONG_TRAIN["grad_norm"]).tolist()),
    ]


def test_the_highest_learning_rate_is_inside_the_picture():
    learning_rate, _ = optimization_figure(TRAIN).axes

    lowest, highest = learning_rate.get_ylim()
    assert lowest == 0
    assert highest > max(TRAIN["lr"])


def test_the_loss_by_position_is_drawn_with_its_first_and_last_value():
    axes = axes_of("position")

    assert lines_of(axes) == [(CURVE["context_tokens"], CURVE["nats_per_token"])]
    assert [text.get_text() for text in axes.texts] == ["5.00", "3.00"]


def test_a_run_that_has_only_begun_is_drawn():
    first_validation = {name: values[:1] for name, values in VALIDATION.items()}

    picture = to_png(training_figure({}, first_validation))

    assert picture.startswith(b"\x89PNG")


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


@pytest.mark.parametrize("last", [100, 256, 32768])
def test_the_ticks_of_the_positions_do_not_overlap(last):
    x = [2**i for i in range(last.bit_length())]
    curve = {"context_tokens": x, "nats_per_token": [3.0] * len(x)}

    figure = figure_of(partial(draw_loss_by_position, curve=curve), size=(7.5, 3.6))
    figure.draw_without_rendering()

    labels = figure.axes[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert len(boxes) > 5
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


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


def test_smoothing_keeps_the_beginning_and_shows_no_noise_at_the_end():
    smoothed = smooth([9.0, 5.0, 3.0, 3.0, 3.0, 6.0], fraction=0.7)

    assert smoothed.tolist() == [9.0, 17 / 3, 4.6, 4.0, 3.75, 4.0]


def bits_per_byte(nats: float, utf8_bytes: int) -> float:
    return nats / math.log(2) / utf8_bytes


def test_a_document_is_drawn_at_its_overlap_and_its_bits_per_byte():
    axes = axes_of("documents")

    clean, not_clean = axes.collections
    np.testing.assert_allclose(clean.get_offsets(), [(0.0, bits_per_byte(100, 100)), (0.1, bits_per_byte(30, 20))])
    np.testing.assert_allclose(not_clean.get_offsets(), [(0.2, bits_per_byte(50, 80))])


def test_the_area_of_a_document_grows_with_its_bytes():
    """The longest has the same area beside any others, 55 for each inch of the picture, which is 4 inches wide."""
    clean, not_clean = axes_of("documents").collections

    of_100_bytes, of_20_bytes = clean.get_sizes()
    (of_80_bytes,) = not_clean.get_sizes()
    assert of_100_bytes == 6 + 55 * 4
    assert (of_80_bytes - of_20_bytes) / (of_100_bytes - of_20_bytes) == pytest.approx((80 - 20) / (100 - 20))


def test_all_documents_and_the_limit_of_clean_ones_are_inside_the_picture():
    axes = axes_of("documents")

    (limit,) = axes.lines
    assert list(limit.get_xdata()) == [0.2, 0.2]
    left, right = axes.get_xlim()
    _, top = axes.get_ylim()
    assert left < 0
    assert right > 0.2
    assert top > bits_per_byte(30, 20)


def test_the_legend_of_the_documents_has_the_loss_of_both_groups_over_their_bytes():
    clean = bits_per_byte(100 + 30, 100 + 20)
    not_clean = bits_per_byte(50, 80)

    assert names_in(axes_of("documents")) == [
        f"clean: 2 documents, {clean:.3f} bits per byte",
        f"not clean: 1 documents, {not_clean:.3f} bits per byte",
    ]


def test_only_columns_of_numbers_are_read(tmp_path):
    path = tmp_path / "full.csv"
    path.write_text("tokens,train_loss,checkpoint_digest\n1,2.5,0e9999999999\n3,4,aa\n")

    assert read_csv(path) == {"tokens": [1.0, 3.0], "train_loss": [2.5, 4.0]}


def test_a_csv_without_rows_has_no_columns(tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("tokens,train_loss\n")

    assert read_csv(path) == {}
