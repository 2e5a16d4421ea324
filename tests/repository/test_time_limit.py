"""A test that hangs is ended with its name, and the others run."""

import signal
import subprocess
import sys

from support import ROOT

TESTS = """
import subprocess
import threading
import time

import pytest


def test_waits_for_a_process():
    subprocess.run(["sleep", "100"])


def test_waits_for_a_lock():
    lock = threading.Lock()
    with lock:
        lock.acquire()


@pytest.mark.slow
def test_is_slow():
    time.sleep(3)


def test_is_fast():
    pass
"""


def test_a_hanging_test_is_ended_with_its_name(tmp_path):
    (tmp_path / "conftest.py").write_text("from support.fixtures import pytest_collection_modifyitems\n")
    (tmp_path / "test_hangs.py").write_text(TESTS)
    # One process: a limit of two seconds can end a busy worker of xdist in the middle of a report, and then all wait.
    pytest = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")]
    options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-o", "timeout=2"]

    done = subprocess.run([*pytest, *options, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True)

    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    failed = "".join(line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    assert "::test_waits_for_a_process" in failed
    assert "::test_waits_for_a_lock" in failed
    assert done.stdout.count("Timeout (>2.0s) from pytest-timeout") >= 2


def test_every_test_has_a_limit(request):
    assert 60 <= float(request.config.getini("timeout")) <= 600


def test_the_limit_is_running_in_this_process(request):
    # make runs the tests in several processes: this test looks into one of them.
    remaining_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < remaining_s <= float(request.config.getini("timeout"))
