"""The record of a model says whether it keeps to its document; older records, which do not, mean that it does not."""

import json

import pytest
import torch

from lm.core.errors import IntegrityError
from lm.model.weights import load_trained
from support.model_cases import build, write_bpe, write_trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    tokenizer = write_bpe(folder / "tokenizer")
    write_trained(folder / "models", build(tokenizer.vocab_size), tokenizer)
    return folder / "models"


@pytest.mark.parametrize(
    ("entries", "document_start_id"),
    [
        ({"attend_across_documents": False, "eot_id": 7}, 7),
        ({"attend_across_documents": True, "eot_id": 7}, None),
        ({}, None),
    ],
)
def test_a_model_keeps_to_its_document_as_its_record_says(trained, entries, document_start_id):
    assert load_with(trained, entries).document_start_id == document_start_id


def test_a_record_without_the_id_that_begins_a_document_is_refused(trained):
    with pytest.raises(IntegrityError, match=r"model\.json: eot_id is missing; run `dvc repro -f train`"):
        load_with(trained, {"attend_across_documents": False})


def load_with(models, entries):
    """Load the model with these entries in its record instead of its own."""
    path = models / "model.json"
    record = json.loads(path.read_text())
    kept = {name: value for name, value in record.items() if name not in ("attend_across_documents", "eot_id")}
    path.write_text(json.dumps(kept | entries))
    return load_trained(models, torch.device("cpu"))[0]
