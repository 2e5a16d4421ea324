"""Hooks of tests/ and extras/: order, time limits, files in memory. One torch thread.

Threads wait for each other by spinning, which beside other processes makes small steps many times slower.
"""

import os
import shutil
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import psutil
import pytest

from support import ROOT

os.environ.setdefault("OMP_NUM_THREADS", "1")
SLOW_TIMEOUT_S = 3600
MEMORY = Path("/dev/shm")
MOST_BYTES_OF_TESTS = 4 << 30
# Files of more than 20 seconds of CPU time, which run first: the last worker to end has a short one. Of the first three
# only one waits for `finished`.
COSTLY_FILES = [
    "tests/evidence/test_judging_runs.py",
    "tests/faults/test_kills.py",
    "tests/tools/test_compare_experiments.py",
    "tests/lm/exact/test_gpu.py",
    "tests/faults/test_damaged_inputs.py",
    "tests/tools/test_verify.py",
    "tests/tools/test_judge_runs.py",
    "tests/faults/test_network.py",
    "tests/faults/test_failing_ranks.py",
    "tests/stages/test_train_stage.py",
    "tests/repository/test_reruns.py",
    "tests/repository/test_make.py",
]


def pytest_configure() -> None:
    """Put temporary files into memory where there is room.

    Tests write and sync thousands of small files, which takes as long on a disk as everything else.
    """
    for folder in MEMORY.glob("lm-tests-*"):
        if not psutil.pid_exists(int(folder.name.rpartition("-")[2])):
            shutil.rmtree(folder, ignore_errors=True)
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MOST_BYTES_OF_TESTS
    if has_room and "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        folder = MEMORY / f"lm-tests-{os.getpid()}"
        folder.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put costly files first, and give slow tests another time limit than pyproject.toml."""
    ranks = {ROOT / name: rank for rank, name in enumerate(COSTLY_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@pytest.fixture
def stub_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stub of a model say its losses itself; those of a model are computed in lm.model.score."""
    monkeypatch.setattr("lm.model.score.token_losses", lambda model, ids, targets: model.token_losses(ids, targets))
