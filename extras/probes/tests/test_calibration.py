"""Calibration: the probability of the most likely token against how often it is right."""

from pathlib import Path

import numpy as np
import pytest
import torch

from extras.probes import calibration
from extras.probes.calibration import calibrate, predict, summarize_calibration
from lm.tokens.tokenfile import TokenFile
from support.model_cases import build

VOCAB, SEQ_LEN = 50, 16


def test_predictions_are_those_of_the_models_logits():
    ids = np.random.default_rng(1).integers(0, VOCAB, 640).astype(np.uint16)
    model, tokens = build(VOCAB), TokenFile(Path("validation.bin"), ids, {"tokenizer": {"eot_id": 0}})
    starts = np.array([0, 32, 624])
    probabilities, is_right = predict(model, tokens, starts, SEQ_LEN)
    windows = np.concatenate([[0], ids]).astype(np.int64)[starts[:, None] + np.arange(SEQ_LEN + 1)]
    with torch.no_grad():
        p = model(torch.from_numpy(windows[:, :-1])).softmax(-1).flatten(0, 1)
    assert probabilities == pytest.approx(p.max(1).values.numpy(), abs=1e-6)
    assert is_right.tolist() == (p.argmax(1).numpy() == windows[:, 1:].ravel()).tolist()
    assert calibrate(model, tokens, SEQ_LEN)["tokens"] == 640


def test_a_sample_is_spread_evenly_over_the_file(monkeypatch):
    starts = []
    monkeypatch.setattr(calibration, "SAMPLE_TOKENS", 160)
    fake = lambda model, tokens, batch, seq_len: (starts.extend(batch), (np.ones(1), np.ones(1)))[1]  # noqa: E731
    monkeypatch.setattr(calibration, "predict", fake)
    calibrate(None, TokenFile(Path(), np.zeros(641, np.uint16), {}), SEQ_LEN)
    assert len(starts) == 10 and set(np.diff(starts)) == {64}
    assert starts[0] >= 0 and starts[-1] + SEQ_LEN <= 641


def test_the_calibration_error_weighs_each_bin_by_its_predictions():
    probabilities = np.array([0.01, 0.02, 0.99, 1.0, 1.0, 1.0], np.float32)
    figures = summarize_calibration(probabilities, np.array([0, 1, 1, 1, 0, 0], bool))
    first, last = figures["bins"]
    assert (first["from"], last["to"], first["tokens"], last["tokens"]) == (0, 1, 2, 4)
    assert (first["accuracy"], last["accuracy"]) == (0.5, 0.5)
    expected = (2 * abs(0.5 - 0.015) + 4 * abs(0.5 - 0.9975)) / 6
    assert figures["expected_calibration_error"] == pytest.approx(expected, abs=1e-6)
