"""Fixtures of the faults: the whole pipeline, small, and a small training run with token files of its own."""

import json

import numpy as np
import pytest

from support.damage import with_ids
from support.stages import work_in_copy
from support.train_cases import fresh_training, make_training, results, run_stage


@pytest.fixture
def project(pipeline, tmp_path, monkeypatch):
    """The working directory: a copy of `pipeline`."""
    copy = tmp_path / "project"
    work_in_copy(monkeypatch, pipeline, copy)
    return copy


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A small copy of the repository with token files to train on; the validation loss is least before the end."""
    workspace = make_training(tmp_path_factory.mktemp("training") / "ws")
    workspace.change(**{"train.micro_batch_tokens": 256})  # which two ranks can share
    with_ids(np.random.default_rng(0).permutation)(workspace.folder / "validation.bin")
    return workspace


@pytest.fixture(scope="module")
def undisturbed(template):
    """The results of an undisturbed run in `template`."""
    with fresh_training(template):
        assert run_stage().code == 0
        found = results()
    record = json.loads(found["data/models/model.json"])
    assert 0 < record["best"]["step"] < record["last"]["step"]
    return found


@pytest.fixture
def workspace(template, undisturbed):
    """The working directory: the small copy as it was for `undisturbed`, before any run."""
    with fresh_training(template):
        yield template
