"""Fixtures of the faults: a small project to tokenize, and a small copy of the repository to train in."""

import shutil
from pathlib import Path

import pytest

from lm.tokenizer.build import write_byte_level, write_huggingface
from support.tokenize_cases import BYTES, make_project
from support.train_cases import clear, make_training, restored, undisturbed_results


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working directory: parameters and the vocabulary of bytes in tokenizer/; each test writes its texts."""
    monkeypatch.chdir(tmp_path)
    make_project()
    return tmp_path


@pytest.fixture(scope="module")
def byte_vocabularies(tmp_path_factory):
    """Folders of the vocabulary of bytes: "bytes" runs in threads, "imported" (Hugging Face's) in processes."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("bytes", "imported")}
    write_byte_level(folders["bytes"], BYTES, "bpe")
    write_huggingface(folders["imported"], folders["bytes"])
    return folders


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A small copy of the repository with token files to train on."""
    return make_training(tmp_path_factory.mktemp("training") / "ws")


@pytest.fixture(scope="module")
def undisturbed(template):
    """The results of an undisturbed run in `template`."""
    return undisturbed_results(template)


@pytest.fixture
def workspace(request, template, undisturbed, monkeypatch):
    """The current directory: the small copy as it was for `undisturbed`, before any run.

    The files that the tests of a module change, its CHANGED, are restored after each test.
    """
    monkeypatch.chdir(template.folder)
    clear()
    with restored(*request.module.CHANGED):
        yield template
    for name in ("held", "go", "ran"):
        shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink(missing_ok=True)
