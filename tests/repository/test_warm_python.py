"""The `python` and `dvc` of the fast suite: they start at once, and end as the real ones do."""

import os
import signal
import subprocess
import sys

import pytest

from support.warm_python import WARM_PROGRAMS, start_server, stop_server

SCRIPT = """
import os, sys
import beside
print(sys.argv, os.getcwd(), __name__, "torch" in sys.modules, beside.NAME, os.environ["COLOUR"])
print(sys.stdin.read(), file=sys.stderr)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
if sys.argv[1] == "raise":
    raise ValueError("wrong")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of the programs: those of the fast suite, or those of a server of its own."""
    if WARM_PROGRAMS in os.environ:
        yield os.environ[WARM_PROGRAMS]
        return
    folder = tmp_path_factory.mktemp("warm")
    server = start_server(folder)
    yield str(folder)
    stop_server(server)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a script, and a module beside it."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "beside.py").write_text("NAME = 'a neighbour'\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command: str, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, env=environment, input="typed", capture_output=True, text=True)


def test_a_script_runs_as_in_an_interpreter_of_its_own_with_torch_already_loaded(programs, folder):
    done = run(f"{programs}/python", "scripts/script.py", "3", COLOUR="red")

    words = ["scripts/script.py", "3"]
    assert done.stdout == f"{words} {folder} __main__ True a neighbour red\n"
    assert (done.stderr, done.returncode) == ("typed\n", 3)


def test_an_exception_and_a_kill_end_it_as_they_end_python(programs, folder):
    raised = run(f"{programs}/python", "scripts/script.py", "raise", COLOUR="red")
    killed = run(f"{programs}/python", "scripts/script.py", "kill", COLOUR="red")

    assert raised.returncode == 1
    assert raised.stderr.splitlines()[-1] == "ValueError: wrong"
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "change", [{"OMP_NUM_THREADS": "2"}, {"PYTHONPATH": "elsewhere"}, {"NUMBA_CPU_NAME": "generic"}]
)
def test_settings_that_packages_read_at_import_get_the_real_python(programs, folder, change):
    done = run(f"{programs}/python", "scripts/script.py", "0", COLOUR="red", **change)

    assert " __main__ False a neighbour " in done.stdout


def test_options_get_the_real_python(programs, folder):
    done = run(f"{programs}/python", "-c", "import sys; print(sys.executable)")

    assert done.stdout == f"{sys.executable}\n"


def test_dvc_runs_its_stages_with_this_python(programs, folder):
    (folder / "dvc.yaml").write_text("stages:\n  one:\n    cmd: python scripts/script.py 0\n    outs: []\n")
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "COLOUR": "red"}
    run(f"{programs}/dvc", "init", "--no-scm", **environment)

    done = run(f"{programs}/dvc", "repro", **environment)

    assert done.returncode == 0, done.stderr
    assert f"{folder} __main__ True a neighbour red\n" in done.stdout
