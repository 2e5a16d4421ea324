"""Fixtures of tests/ and extras/: the pipeline that has run, which tests copy. One torch thread for all tests.

Threads wait for each other by spinning, which beside other processes makes small steps many times slower.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import pytest

from lm.core.files import output_lock
from support import ROOT
from support.warm_python import WARM_PROGRAMS, start_server, stop_server
from support.workspace import Workspace

os.environ.setdefault("OMP_NUM_THREADS", "1")
SLOW_TIMEOUT_S = 3600
# Files of more than a minute of CPU time, which run first: the last worker to end has a short one. Of the first three
# only one waits for `finished`.
COSTLY_FILES = [
    "extras/suite/tests/test_suite.py",
    "tests/lm/model/test_gemma3.py",
    "tests/lm/train/test_kept_weights.py",
    "tests/tools/test_verify.py",
    "tests/faults/test_damaged_inputs.py",
    "tests/tools/test_use.py",
]
# Packages that are slow to import and that few tests need; those import them in their functions.
IMPORTED_LATE = {"datasets", "gguf", "huggingface_hub", "lm_eval", "sympy", "torch._dynamo", "transformers"}
IMPORTED_AT_COLLECTION = pytest.StashKey[set[str]]()
SERVER = pytest.StashKey[subprocess.Popen]()


def pytest_configure(config: pytest.Config) -> None:
    """For `make test`, start the server of `python` and `dvc`: one for all processes of the tests."""
    if config.getoption("markexpr") == "not slow" and WARM_PROGRAMS not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="warm"))
        config.stash[SERVER] = start_server(folder)
        os.environ[WARM_PROGRAMS] = str(folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the server, in the process that started it."""
    if SERVER in config.stash:
        stop_server(config.stash[SERVER])
        del config.stash[SERVER], os.environ[WARM_PROGRAMS]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put costly files first, and give slow tests another time limit than pyproject.toml."""
    ranks = {ROOT / name: rank for rank, name in enumerate(COSTLY_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which of IMPORTED_LATE the test files have imported, which each worker pays."""
    session.config.stash[IMPORTED_AT_COLLECTION] = IMPORTED_LATE & sys.modules.keys()


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """The folder of the small pipeline after its first run, on a commit of its parameters; one for all processes.

    The stages run in this process, a quarter of the work of `dvc repro`, which starts an interpreter for each. DVC then
    records them.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with output_lock(shared / "finished", wait=True):
        if not (shared / "finished").exists():
            workspace = Workspace(shared / "unfinished")
            workspace.make_small()
            workspace.commit()
            workspace.run_stages()
            workspace.run("dvc", "commit", "--force", "dvc.yaml")
            workspace.folder.rename(shared / "finished")
    return shared / "finished"


@pytest.fixture(scope="session")
def finished_commit(finished, tmp_path_factory) -> Path:
    """The folder `finished` after a commit of all that its run has left."""
    workspace = Workspace(tmp_path_factory.mktemp("finished_commit"), finished)
    workspace.commit()
    return workspace.folder


@pytest.fixture
def committed(finished_commit, tmp_path, monkeypatch) -> Workspace:
    """The small pipeline after its run, all of it committed, as the working directory."""
    workspace = Workspace(tmp_path / "committed", finished_commit)
    monkeypatch.chdir(workspace.folder)
    return workspace
