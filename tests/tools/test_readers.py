"""A reader of an exported model computes the losses of this project's code, or nothing is exported."""

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.exact import functions as exact
from lm.model import kernels
from support.export_cases import call, write_run
from support.model_cases import build
from support.refusal import refused
from tools.export_hf import hugging_face
from tools.export_hf.hugging_face import (
    check_reader,
    compare_losses,
    draw_window,
    open_with_transformers,
    write_pretrained,
)

EOT_ID = 399


def exact_gelu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gelu whose approximation by a tanh the published model has."""
    return torch.nn.functional.gelu(gate) * up


# Unchanged code.


@pytest.mark.parametrize("shape", [{}, {"n_layer": 9}, {"sliding_window": 90}])
@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_rounding_is_at_most_a_quarter_of_what_is_allowed(tmp_path, shape, numerics):
    model = build(400, numerics=numerics, **shape)
    write_pretrained(tmp_path, model, EOT_ID)

    agreement = compare_losses(model, open_with_transformers(tmp_path), EOT_ID)

    assert agreement.largest_difference < agreement.allowed / 4
    assert agreement.ours == pytest.approx(agreement.theirs, abs=1e-6)
    assert agreement.ours > 1


def test_the_window_is_one_document_that_every_sliding_layer_cuts():
    config = build(60).config

    eot_id, *ids = draw_window(config, 9)[0].tolist()

    assert eot_id == 9
    assert 9 not in ids
    # Every scored token has more tokens before it than a sliding layer sees.
    assert len(ids) == config.sliding_window + hugging_face.SCORED_TOKENS <= config.max_seq_len


# Changed code.


def lose_a_number(patch, model) -> None:
    model.norm.weight.data[0] = torch.nan


def change_one_token(patch, model) -> None:
    """Change its loss by half of what would show in the mean over SCORED_TOKENS."""
    of_code = hugging_face.token_losses

    def losses(*arguments):
        nats = of_code(*arguments).clone()
        nats[0, 5] += hugging_face.SCORED_TOKENS / 2 * hugging_face.rounding_bound(model.config, 6.0)
        return nats

    patch.setattr(hugging_face, "token_losses", losses)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch, model: patch.setattr(kernels, "gated_gelu", exact_gelu),
        lambda patch, model: patch.setattr(model.layers[1].self_attn, "scale", 0.25),
        lambda patch, model: patch.setattr(model.layers[0].self_attn, "window", 7),
        lambda patch, model: patch.setattr(model.norm, "eps", 0.1),
        lose_a_number,
        change_one_token,
    ],
)
def test_a_change_of_the_code_is_more_than_rounding(tmp_path, monkeypatch, change):
    model = build(400)
    write_pretrained(tmp_path, model, EOT_ID)
    theirs = open_with_transformers(tmp_path)
    check_reader(tmp_path, model, theirs, EOT_ID)
    change(monkeypatch, model)

    with pytest.raises(IntegrityError, match="transformers computes "):
        check_reader(tmp_path, model, theirs, EOT_ID)


@pytest.mark.parametrize(("numerics", "arithmetic"), [("fast", kernels), ("exact", exact)])
def test_a_model_of_changed_code_is_not_exported(tmp_path, monkeypatch, capsys, numerics, arithmetic):
    """The arithmetic that counts is that of the training."""
    write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data" / "models" / "model.json"
    write_json(path, read_json(path) | {"segments": [{"from_step": 0, "numerics": numerics}]})
    monkeypatch.setattr(arithmetic, "gated_gelu", exact_gelu)

    status = call("export")

    sentence = refused(status, capsys.readouterr().err, 4, f"{tmp_path / 'export'}: transformers computes ")
    assert "`git diff src/lm/model` shows your change" in sentence
    assert not (tmp_path / "export").exists()


def test_nothing_is_imported_into_changed_code(exported, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "gated_gelu", exact_gelu)

    status = call("--from", exported.path, tmp_path / "models")

    refused(status, capsys.readouterr().err, 4, f"{tmp_path / 'models'}: transformers computes ")
    assert not (tmp_path / "models").exists()
