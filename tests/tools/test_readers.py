"""A reader of an exported model computes the losses of this project's code, or nothing is exported."""

import pytest
import torch

from lm.core.files import read_json, write_json
from lm.exact import functions as exact
from lm.model import kernels
from support.export_cases import call, write_run
from support.model_cases import build
from support.refusal import refused
from tools.common import readers
from tools.common.hugging_face import write_pretrained
from tools.common.readers import build_with_transformers, compare_losses, draw_window, open_with_transformers

EOT_ID = 399
UNCHANGED = {
    "windows of 8": {},
    "sliding layers only": {"full_attention_every": 9},
    "full layers only": {"full_attention_every": 1},
    "more layers": {"n_layer": 9},
    "a long window": {"sliding_window": 90},
}


def squared_relu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.relu() ** 2 * up


def exact_gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gelu whose approximation by a tanh the published model has."""
    return torch.nn.functional.gelu(gate) * up


@pytest.mark.parametrize("case", UNCHANGED)
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_rounding_is_at_most_a_quarter_of_what_is_allowed(tmp_path, case, numerics):
    model = build(400, numerics=numerics, **UNCHANGED[case])
    write_pretrained(tmp_path, model, EOT_ID)

    agreement = compare_losses(model, open_with_transformers(tmp_path), EOT_ID)

    assert agreement.is_close and agreement.largest_difference < agreement.allowed / 4
    assert agreement.ours == pytest.approx(agreement.theirs, abs=1e-6) and agreement.ours > 1


CHANGES = {
    "another activation": lambda patch, model: patch.setattr(kernels, "gated_gelu", squared_relu),
    "a gelu without the tanh": lambda patch, model: patch.setattr(kernels, "gated_gelu", exact_gelu),
    "another scale": lambda patch, model: patch.setattr(model.layers[1].self_attn, "scale", 0.25),
    "another sliding window": lambda patch, model: patch.setattr(model.layers[0].self_attn, "window", 7),
    "another epsilon": lambda patch, model: patch.setattr(model.norm, "eps", 0.1),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_the_code_is_more_than_rounding(monkeypatch, case):
    model = build(400)
    theirs = build_with_transformers(model)

    assert compare_losses(model, theirs, EOT_ID).is_close
    CHANGES[case](monkeypatch, model)

    assert not compare_losses(model, theirs, EOT_ID).is_close


def test_a_loss_that_is_not_a_number_is_not_close():
    model = build(400)
    theirs = build_with_transformers(model)
    model.norm.weight.data[0] = torch.nan

    assert not compare_losses(model, theirs, EOT_ID).is_close


@pytest.mark.parametrize("eot_id", [0, 7, 399])
def test_the_window_is_one_document_that_every_sliding_layer_cuts(eot_id):
    config = build(400).config

    ids = draw_window(config, eot_id)

    assert ids[0, 0] == eot_id and (ids[0, 1:] != eot_id).all()
    assert ids.min() >= 0 and ids.max() < config.vocab_size and len(ids.unique()) > 40
    assert config.sliding_window + readers.SCORED_TOKENS == ids.shape[1] - 1 <= config.max_seq_len


@pytest.mark.parametrize(("numerics", "arithmetic"), [("fast", kernels), ("exact", exact)])
def test_a_model_of_changed_code_is_not_exported(tmp_path, monkeypatch, capsys, numerics, arithmetic):
    """The arithmetic that counts is that of the training."""
    run = write_run(tmp_path)
    path = tmp_path / "models" / "model.json"
    write_json(path, read_json(path) | {"segments": [{"from_step": 0, "numerics": numerics}]})
    monkeypatch.setattr(arithmetic, "gated_gelu", squared_relu)

    status = call(tmp_path / "export", *run.options)

    sentence = refused(status, capsys.readouterr().err, 4, f"{tmp_path / 'export'}: transformers computes ")
    assert "nats per token of a test window, this code " in sentence and "`git diff src/lm/model` shows it" in sentence
    assert not (tmp_path / "export").exists() and not list(tmp_path.glob(".*.tmp"))


def test_an_import_into_changed_code_is_warned_of(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path)
    assert call(tmp_path / "export", *run.options) == 0
    assert call("--from", tmp_path / "export", tmp_path / "same") == 0
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr(kernels, "gated_gelu", squared_relu)

    assert call("--from", tmp_path / "export", tmp_path / "other") == 0

    assert f"warning: {tmp_path / 'export'}: transformers computes " in capsys.readouterr().err
