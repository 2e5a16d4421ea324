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
    save_weights,
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
    record = {"config": dataclasses.asdict(best.config), "tokenizer_sha256": TOKENIZER, "eot_id": 7}
    record |= {"attend_across_documents": True, "best": {"step": 3}, "last": {"step": 5}}
    save_models(tmp_path / "models", weights_of(best), weights_of(last), record)
    return tmp_path / "models", best, last


def change(folder, **values):
    path = folder / "model.json"
    write_json(path, json.loads(path.read_text()) | values)


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_best_weights_are_read_and_both_have_their_hashes(trained):
    folder, best, last = trained
    model, record = load_trained(folder, CPU)
    assert same(model, best) and not same(model, last)
    for name, step in (("best", 3), ("last", 5)):
        assert record[name] == {"step": step, "sha256": sha256_file(folder / f"{name}_model_params.pt")}
    found = torch.load(folder / "last_model_params.pt", weights_only=True)
    assert all(torch.equal(found[name], weight) for name, weight in last.state_dict().items())


def test_weights_of_another_hash_or_shape_are_refused(trained):
    folder, best, _ = trained
    (folder / "last_model_params.pt").replace(folder / "best_model_params.pt")
    with pytest.raises(IntegrityError, match=r"best_model_params\.pt: sha256 is .*, its record says "):
        load_trained(folder, CPU)
    config = dataclasses.asdict(best.config) | {"d_ff": 32}
    change(folder, config=config, best={"step": 3, "sha256": sha256_file(folder / "best_model_params.pt")})
    with pytest.raises(IntegrityError, match=r"best_model_params\.pt does not fit model\.json"):
        load_trained(folder, CPU)


@pytest.mark.parametrize(("across", "start_id"), [(True, None), (False, 7)])
def test_a_model_keeps_to_its_documents_if_it_was_trained_so(trained, across, start_id):
    change(trained[0], attend_across_documents=across)
    assert load_trained(trained[0], CPU)[0].document_start_id == start_id


@pytest.mark.parametrize("numerics", ["fast", "exact"])
def test_a_model_computes_in_the_asked_numerics(trained, numerics):
    assert load_trained(trained[0], CPU, numerics)[0].numerics == numerics
    model, _ = load_initial(trained[0], trained[1].config, TOKENIZER, numerics)
    assert model.numerics == numerics
    assert recorded_numerics({"segments": [{"from_step": 0, "numerics": numerics}]}) == numerics
    assert recorded_numerics({"segments": []}) == recorded_numerics({}) == "fast"


def test_a_run_starts_from_the_best_weights_of_a_folder(trained, tmp_path):
    folder, best, _ = trained
    model, sha256 = load_initial(folder, best.config, TOKENIZER)
    assert same(model, best) and sha256 == sha256_file(folder / "best_model_params.pt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".gitkeep").touch()
    assert load_initial(tmp_path / "empty", best.config, TOKENIZER) == (None, None)


def test_a_folder_that_is_missing_is_not_one_of_the_pipeline(tmp_path, trained):
    with pytest.raises(ParamsError, match=r"train\.init_from is .*nothing, which does not exist; name a folder like"):
        load_initial(tmp_path / "nothing", trained[1].config, TOKENIZER)


def test_a_run_does_not_start_from_a_model_of_another_tokenizer_or_shape(trained):
    folder, best, _ = trained
    with pytest.raises(IntegrityError, match=f"trained with tokenizer abab.*tokenizer.path to {folder}"):
        load_initial(folder, best.config, "cd" * 32)
    config = dataclasses.replace(best.config, sliding_window=9, norm_eps=1e-7)
    sentence = r"model\.json: sliding_window is 8, not 9, norm_eps is 1e-06, not 1e-07; choose the preset"
    with pytest.raises(IntegrityError, match=sentence):
        load_initial(folder, config, TOKENIZER)


def test_a_kept_checkpoint_lies_in_the_folder_of_its_step(tmp_path, trained):
    _, best, _ = trained
    folder = tmp_path / "kept_weights" / "step-000000003"
    record = {"config": dataclasses.asdict(best.config), "best": {"step": 3}}
    save_weights(folder, weights_of(best), record)
    assert same(load_trained(folder, CPU)[0], best)
    folder.rename(folder.with_name("step-000000004"))
    with pytest.raises(IntegrityError, match="is of step 3, not that of its folder"):
        load_trained(folder.with_name("step-000000004"), CPU)


def test_a_compressed_archive_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "a.pt")
    check_archive(tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(IntegrityError, match="it is compressed"):
        load_tensors(tmp_path / "b.pt", None)
