"""Small projects, each made once for all processes of the tests. Tests copy it.

- `pipeline`: all stages have run on own text, without DVC; code is linked to the repository's.
- `held_out`: the same with 8 test documents, and windows that overlap in evaluations.
- `finished`: a small copy of the repository after all stages, recorded by DVC; its code and parameters are in Git.
- `finished_commit`: `finished` after a commit of all that its run has left.

A test that changes files works in a copy: `Workspace(folder, finished)`, `work_in_copy(monkeypatch, pipeline, folder)`.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.core.files import output_lock
from support.stages import TINY, change_params, run_stages, stage_folder, write_texts
from support.workspace import Workspace

SPLIT = "sources.local.fetch.split"
TEST_DOCUMENTS = 8


def made_once(name: str, factory: pytest.TempPathFactory, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled: the first process that asks makes it, others wait."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with output_lock(folder, wait=True):
        if not folder.exists():
            unfinished = shared / f"unfinished-{name}"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that failed
            make(unfinished)
            unfinished.rename(folder)
    return folder


def make_pipeline(folder: Path, **params) -> None:
    """Run all stages on own text in a new folder; a run saves a checkpoint at every step."""
    stage_folder(folder)
    write_texts(folder / "data/local/texts.jsonl")
    change_params(folder, TINY | params)
    change_params(folder, {"train.checkpoint_every_s": 0}, "runtime.yaml")
    with contextlib.chdir(folder):
        run_stages()


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory) -> Path:
    """The folder of a pipeline on own text in which all stages have run."""
    return made_once("pipeline", tmp_path_factory, make_pipeline)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory) -> Path:
    """The folder of a pipeline with a test split."""
    params = {f"{SPLIT}.test_documents": TEST_DOCUMENTS, "eval.stride_fraction": 0.5}
    return made_once("held_out", tmp_path_factory, lambda folder: make_pipeline(folder, **params))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of the small project after its first run.

    The stages run in this process, a quarter of the work of `dvc repro`. DVC then records them.
    """

    def make(folder: Path) -> None:
        workspace = Workspace(folder)
        workspace.make_small()
        workspace.commit()
        workspace.run("git", "gc", "-q")  # tests copy one file instead of a thousand
        workspace.run_stages()
        workspace.run("dvc", "commit", "--force", "dvc.yaml")

    return made_once("finished", tmp_path_factory, make)


@pytest.fixture(scope="session")
def finished_commit(tmp_path_factory, finished) -> Path:
    """The folder `finished` after a commit of all that its run has left."""

    def make(folder: Path) -> None:
        workspace = Workspace(folder, finished)
        workspace.commit()

    return made_once("finished_commit", tmp_path_factory, make)


@pytest.fixture
def committed(finished_commit, tmp_path, monkeypatch) -> Workspace:
    """The small project after its run, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "committed", finished_commit)
    monkeypatch.chdir(workspace.folder)
    return workspace
