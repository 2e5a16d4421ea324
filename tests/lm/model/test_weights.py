"""The folder of a trained model: which weights and settings are read, and what a run may start from."""

import dataclasses
import json
import zipfile

import pytest
import torch

from lm.core.errors import IntegrityError, ParamsError
from lm.core.files import sha256_file, write_json
from lm.model.weights import (
    check_archive,
    load_initial,
    load_tensors,
    load_trained,
    recorded_numerics,
    save_models,
)
from support.model_cases import build

CPU = torch.device("cpu")
TOKENIZER = "ab" * 32


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


@pytest.fixture
def trained(tmp_path):
    """A folder whose best and last weights differ, with the model of its best ones."""
    best = build(60, seed=1)
    last = build(60, seed=2)
    record = {
        "config": dataclasses.asdict(best.config),
        "tokenizer_sha256": TOKENIZER,
        "eot_id": 7,
        "attend_across_documents": True,
        "best": {"step": 3},
        "last": {"step": 5},
    }
    save_models(tmp_path / "models", weights_of(best), weights_of(last), record)
    return tmp_path / "models", best, last


def change(folder, **values):
    path = folder / "model.json"
    write_json(path, json.loads(path.read_text()) | values)


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_best_weights_are_read_and_the_last_ones_are_beside_them(trained):
    folder, best, last = trained

    model, record = load_trained(folder, CPU)
    kept = torch.load(folder / "last_model_params.pt", weights_only=True)

    assert same(model, best)
    assert all(torch.equal(kept[name], weight) for name, weight in last.state_dict().items())
    for name, step in (("best", 3), ("last", 5)):
        assert record[name] == {"step": step, "sha256": sha256_file(folder / f"{name}_model_params.pt")}


def test_weights_of_another_shape_or_hash_are_refused(trained):
    folder, best, _ = trained

    change(folder, config=dataclasses.asdict(best.config) | {"d_ff": 32})
    with pytest.raises(IntegrityError, match=r"best_model_params\.pt does not fit model\.json"):
        load_trained(folder, CPU)

    (folder / "last_model_params.pt").replace(folder / "best_model_params.pt")
    with pytest.raises(IntegrityError, match=r"best_model_params\.pt: sha256 is .*, its record says "):
        load_trained(folder, CPU)


def test_a_record_without_numerics_is_of_fast_ones():
    assert recorded_numerics({"segments": [{"from_step": 0, "numerics": "exact"}]}) == "exact"
    assert recorded_numerics({}) == "fast"


def test_a_run_starts_from_random_weights_if_the_folder_has_no_model_and_not_without_one(trained, tmp_path):
    _, best, _ = trained
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".gitkeep").touch()

    assert load_initial(empty, best.config, TOKENIZER) == (None, None)

    with pytest.raises(ParamsError, match=r"train\.init_from is .*nothing"):
        load_initial(tmp_path / "nothing", best.config, TOKENIZER)


def test_a_run_does_not_start_from_a_model_of_another_tokenizer_or_shape(trained):
    folder, best, _ = trained
    config = dataclasses.replace(best.config, sliding_window=9, norm_eps=1e-7)

    with pytest.raises(IntegrityError, match=f"tokenizer abab.*tokenizer.path to {folder}"):
        load_initial(folder, best.config, "cd" * 32)
    with pytest.raises(IntegrityError, match="sliding_window is 8, not 9, norm_eps is 1e-06, not 1e-07"):
        load_initial(folder, config, TOKENIZER)


def test_a_compressed_archive_is_refused(tmp_path):
    stored = tmp_path / "stored.pt"
    torch.save({"w": torch.zeros(1000)}, stored)
    check_archive(stored)
    compressed = tmp_path / "compressed.pt"
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))

    with pytest.raises(IntegrityError, match="it is compressed"):
        load_tensors(compressed, None)


def test_a_model_keeps_to_its_documents_as_it_was_trained_and_computes_in_the_asked_numerics(trained):
    folder, best, _ = trained
    change(folder, attend_across_documents=False)

    model, _ = load_trained(folder, CPU, "exact")
    initial, _ = load_initial(folder, best.config, TOKENIZER, "exact")

    assert (model.document_start_id, model.numerics) == (7, "exact")
    assert initial.numerics == "exact"
