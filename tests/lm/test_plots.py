"""Test the pictures of a run: deterministic bytes, readable ticks, labels that do not overlap."""

import functools
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys

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
DRAW = functools.partial
PANELS = {
    "losses": DRAW(draw_losses, train=TRAIN, validation=VALIDATION),
    "learning_rate": DRAW(draw_learning_rate, train=TRAIN),
    "gradient_norm": DRAW(draw_gradient_norm, train=TRAIN),
    "position": DRAW(draw_loss_by_position, curve=CURVE),
    "documents": DRAW(draw_documents, documents=DOCUMENTS, clean_below=0.2),
}


@pytest.mark.parametrize("panel", PANELS)
def test_equal_data_give_equal_bytes(panel):
    first, second = (to_png(figure_of(PANELS[panel], size=(4, 3))) for _ in range(2))
    assert first == second and first.startswith(b"\x89PNG")


DRAW_ELSEWHERE = """
import hashlib, json, sys
from lm import plots
train, validation = json.loads(sys.argv[1])
print(hashlib.sha256(plots.to_png(plots.training_figure(train, validation))).hexdigest())
"""


def test_a_matplotlibrc_of_the_user_changes_nothing(tmp_path):
    own = "font.family: serif\nfont.size: 20\nlines.linewidth: 9\nsavefig.bbox: tight\nsavefig.dpi: 50\n"
    (tmp_path / "matplotlibrc").write_text(own + "axes.facecolor: black\nimage.cmap: gray\naxes.unicode_minus: False\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    command = [sys.executable, "-c", DRAW_ELSEWHERE, json.dumps([TRAIN, VALIDATION])]
    drawn = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert drawn == hashlib.sha256(to_png(training_figure(TRAIN, VALIDATION))).hexdigest()


def test_every_panel_names_its_y_axis_and_the_lowest_one_its_x_axis():
    for panel in PANELS.values():
        (axes,) = figure_of(panel, size=(4, 3)).axes
        assert axes.get_xlabel() and axes.get_ylabel()
    figure = optimization_figure(TRAIN)
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "tokens seen"]
    assert all(axes.get_ylabel() for axes in figure.axes)


def test_the_title_says_what_the_validation_losses_show():
    def title(*losses):
        tokens = [1000.0 * i for i in range(len(losses))]
        (axes,) = training_figure({}, {"tokens": tokens, "val_loss": list(losses)}).axes
        return axes.get_title("left")

    assert title(9.0) == "Loss during training"
    assert title(9.0, 5.0, 3.268) == "The validation loss falls to 3.27 nats per token"
    assert title(9.0, 3.268, 5.0) == "The validation loss is lowest after 1k tokens: 3.27 nats per token"


def lines_of(axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]


def test_each_curve_is_drawn_against_its_tokens():
    # A curve of so many points that the smoothed one differs from it.
    x = [1000.0 * (1 + i) for i in range(60)]
    noisy = [5.0 - i / 20 + i % 2 for i in range(60)]
    train = {"tokens": x, "lr": [0.1 - 0.001 * i for i in range(60)], "train_loss": noisy, "grad_norm": noisy[::-1]}
    (losses,) = training_figure(train, VALIDATION).axes
    learning_rate, gradient_norm = optimization_figure(train).axes
    smoothed = smooth(noisy).tolist()
    assert lines_of(losses) == [(x, noisy), (x, smoothed), (VALIDATION["tokens"], VALIDATION["val_loss"])]
    assert {text.get_text() for text in losses.texts} == {f"training\n{smoothed[-1]:.3f}", "validation\n3.010"}
    assert lines_of(learning_rate) == [(x, train["lr"])]
    assert lines_of(gradient_norm) == [(x, noisy[::-1]), (x, smooth(noisy[::-1]).tolist())]


def test_the_highest_learning_rate_is_inside_the_picture():
    learning_rate, _ = optimization_figure(TRAIN).axes
    assert learning_rate.get_ylim()[0] == 0 and learning_rate.get_ylim()[1] > max(TRAIN["lr"]) > TRAIN["lr"][0]


def test_the_loss_by_position_is_drawn_with_its_first_and_last_value():
    (axes,) = figure_of(PANELS["position"], size=(4, 3)).axes
    assert lines_of(axes) == [(CURVE["context_tokens"], CURVE["nats_per_token"])]
    assert [text.get_text() for text in axes.texts] == ["5.00", "3.00"]


def test_a_run_that_has_only_begun_is_drawn():
    begun = {name: values[:1] for name, values in VALIDATION.items()}
    assert to_png(training_figure({}, begun)).startswith(b"\x89PNG")


@pytest.mark.parametrize(("train_end", "validation_end"), [(3.0, 3.01), (3.05, 3.0), (3.0, 6.0)])
def test_the_names_of_two_curves_do_not_overlap(train_end, validation_end):
    train = TRAIN | {"train_loss": [9.0, 5.0, train_end]}
    validation = VALIDATION | {"val_loss": [9.0, validation_end]}
    figure = figure_of(DRAW(draw_losses, train=train, validation=validation), size=(7.5, 4))
    figure.draw_without_rendering()
    low, high = sorted(figure.axes[0].texts, key=lambda text: text.get_window_extent().y0)
    assert low.get_window_extent().y1 <= high.get_window_extent().y0
    ends = [float(text.get_text().splitlines()[1]) for text in (low, high)]
    assert ends == sorted(ends), "the name of the higher curve is above the other"


@pytest.mark.parametrize("last", [100, 65, 32768])
def test_the_last_tick_of_the_positions_is_the_windows_length(last):
    x = [*(2**i for i in range((last - 1).bit_length())), last]
    curve = {"context_tokens": x, "nats_per_token": [3.0] * len(x)}
    figure = figure_of(DRAW(draw_loss_by_position, curve=curve), size=(4.6, 3.2))
    figure.draw_without_rendering()
    labels = sorted(figure.axes[0].get_xticklabels(), key=lambda label: label.get_position()[0])
    assert labels[-1].get_text() == f"{last:,}"
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_smoothing_keeps_the_beginning_and_shows_no_noise_at_the_end():
    assert smooth([9.0, 5.0, 3.0, 3.0, 3.0, 6.0], fraction=0.7).tolist() == [9.0, 17 / 3, 4.6, 4.0, 3.75, 4.0]


def test_a_document_is_drawn_at_its_bits_per_byte_with_its_bytes_as_area():
    (axes,) = figure_of(PANELS["documents"], size=(4, 3)).axes
    clean, not_clean = axes.collections
    expected = [(0.0, 100 / math.log(2) / 100), (0.1, 30 / math.log(2) / 20), (0.2, 50 / math.log(2) / 80)]
    np.testing.assert_allclose([*clean.get_offsets(), *not_clean.get_offsets()], expected)
    smallest, largest, middle = *sorted(clean.get_sizes()), not_clean.get_sizes()[0]
    assert (middle - smallest) / (largest - smallest) == pytest.approx((80 - 20) / (100 - 20))
    assert largest == 6 + 55 * 4, "the longest document has the same area beside any others, in a picture of 4 inches"
    (limit,) = axes.lines
    assert list(limit.get_xdata()) == [0.2, 0.2]
    # All points lie within the axes.
    assert axes.get_xlim()[0] < 0 and axes.get_xlim()[1] > 0.2 and axes.get_ylim()[1] > expected[1][1]


def test_the_legend_of_the_documents_has_the_loss_of_both_groups_over_their_bytes():
    legend = figure_of(PANELS["documents"], size=(4, 3)).axes[0].get_legend()
    losses = 130 / math.log(2) / 120, 50 / math.log(2) / 80
    words = [f"clean: 2 documents, {losses[0]:.3f} bits", f"not clean: 1 documents, {losses[1]:.3f} bits"]
    assert [text.get_text() for text in legend.get_texts()] == [f"{each} per byte" for each in words]


def test_only_columns_of_numbers_are_read_and_a_csv_without_rows_has_none(tmp_path):
    (tmp_path / "empty.csv").write_text("tokens,train_loss\n")
    (tmp_path / "full.csv").write_text("tokens,train_loss,checkpoint_digest\n1,2.5,0e9999999999\n3,4,aa\n")
    assert read_csv(tmp_path / "empty.csv") == {}
    assert read_csv(tmp_path / "full.csv") == {"tokens": [1.0, 3.0], "train_loss": [2.5, 4.0]}
