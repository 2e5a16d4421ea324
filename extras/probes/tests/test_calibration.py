"""Calibration: the probability of the most likely token against how often it is right."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from extras.probes.calibration import calibrate, predict, spread_windows, summarize_calibration
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

VOCAB, SEQ_LEN = 50, 16


@pytest.fixture(scope="module")
def model():
    return build(VOCAB)


@pytest.fixture(scope="module")
def tokens():
    """A file of 640 random ids."""
    ids = np.random.default_rng(1).integers(0, VOCAB, 640).astype(np.uint16)
    return TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": 0, "vocab_size": VOCAB}})


def test_predictions_are_those_of_the_models_logits(model, tokens):
    starts = np.array([0, 32, 624])
    probabilities, is_right = predict(model, tokens, starts, SEQ_LEN)
    windows = np.concatenate([[0], tokens.ids]).astype(np.int64)[starts[:, None] + np.arange(SEQ_LEN + 1)]
    with torch.no_grad():
        p = model(torch.from_numpy(windows[:, :-1])).softmax(-1).flatten(0, 1)
    assert probabilities == pytest.approx(p.max(1).values.numpy(), abs=1e-6)
    assert is_right.tolist() == (p.argmax(1).numpy() == windows[:, 1:].ravel()).tolist()


def test_the_result_has_the_same_bits_for_any_number_of_threads(model, tokens):
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(calibrate(model, tokens, SEQ_LEN))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2] and found[0]["tokens"] == 640


@pytest.mark.parametrize(("num_tokens", "num_sampled", "count"), [(640, 160, 10), (641, 10_000, 40), (17, 1, 1)])
def test_windows_are_spread_evenly_over_the_file(num_tokens, num_sampled, count):
    starts = spread_windows(num_tokens, SEQ_LEN, num_sampled)
    assert len(starts) == count == len(set(starts)) and (starts % SEQ_LEN == 0).all()
    assert starts[0] >= 0 and starts[-1] + SEQ_LEN <= num_tokens
    distances = np.diff(starts)
    assert len(distances) == 0 or distances.max() - distances.min() <= SEQ_LEN


def test_a_model_that_is_as_often_right_as_it_is_sure_has_no_calibration_error():
    probabilities, is_right = np.full(10, 0.5, np.float32), np.arange(10) < 5
    figures = summarize_calibration(probabilities, is_right)
    assert figures["expected_calibration_error"] == 0 and figures["accuracy"] == figures["mean_probability"] == 0.5


def test_the_calibration_error_weighs_each_bin_by_its_predictions():
    probabilities = np.array([0.01, 0.02, 0.99, 1.0, 1.0, 1.0], np.float32)
    figures = summarize_calibration(probabilities, np.array([0, 1, 1, 1, 0, 0], bool))
    first, last = figures["bins"]
    assert (first["from"], last["to"], first["tokens"], last["tokens"]) == (0, 1, 2, 4)
    assert (first["accuracy"], last["accuracy"]) == (0.5, 0.5)
    expected = (2 * abs(0.5 - 0.015) + 4 * abs(0.5 - 0.9975)) / 6
    assert figures["expected_calibration_error"] == pytest.approx(expected, abs=1e-6)
    assert sum(each["tokens"] for each in figures["bins"]) == figures["tokens"] == 6


def test_a_model_that_sees_one_document_predicts_from_it_alone(model, tokens):
    """The file's own end-of-text ids reset the context."""
    ids = tokens.ids.copy()
    ids[7] = 0
    first, second = ids.copy(), ids.copy()
    second[:7] = (second[:7] + 1) % VOCAB
    model.document_start_id = 0
    try:
        after = [predict(model, dataclasses.replace(tokens, ids=each), np.array([0]), SEQ_LEN)[0][8:]
                 for each in (first, second)]  # fmt: skip
    finally:
        model.document_start_id = None
    assert np.array_equal(*after)
