"""A failure prints one sentence and returns an exit code; --debug adds the traceback."""

import errno
import os
import subprocess
import sys

import pytest

from lm.core import errors
from support import ROOT


def failing(error):
    @errors.exit_with_status
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.ParamsError("a.yaml: x is 1"), 2, "error: a.yaml: x is 1"),
        (errors.IntegrityError("altered"), 4, "error: altered"),
        (errors.DivergedError("nan"), 6, "error: nan"),
        (errors.BusyError("busy"), 75, "error: busy"),
        (errors.Interrupted(15, "stopped"), 143, "error: stopped"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (MemoryError(), 5, "error: out of memory"),
        (OSError(28, "No space left on device", "x.bin"), 5, "error: x.bin: No space left on device"),
        (BrokenPipeError(32, "Broken pipe"), 5, "error: Broken pipe"),  # of a socket
    ],
)
def test_each_error_has_an_exit_code_and_one_line(capsys, error, code, sentence):
    """With --debug its traceback too."""
    assert failing(error)([]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(sentence)

    assert failing(error)(["--debug"]) == code
    printed = capsys.readouterr().err
    assert "in main\n    raise error" in printed
    assert printed.splitlines()[-1].startswith(sentence)


def test_an_error_of_the_system_has_a_remedy(capsys):
    for number in (*errors.REMEDIES, errno.ENOSYS):
        assert failing(OSError(number, os.strerror(number), "x.bin"))([]) == 5
        what, remedy = capsys.readouterr().err.strip().split("; ", 1)
        assert what == f"error: x.bin: {os.strerror(number)}"
        assert len(remedy) > 15


@pytest.mark.parametrize(
    ("error", "file"),
    [
        (OSError(5, "Input/output error"), "x.bin"),
        (BrokenPipeError(32, "Broken pipe"), None),  # a print has failed, not the file
    ],
)
def test_an_error_that_names_no_file_gets_its_name(error, file):
    with pytest.raises(OSError) as caught, errors.names_file("x.bin"):
        raise error

    assert caught.value.filename == file


PRINTING = """
import sys
from pathlib import Path
from lm.core.errors import ParamsError, exit_with_status

@exit_with_status
def main(argv):
    Path("before").touch()
    print("a line\\n" * int(argv[0]), flush=int(argv[0]) > 1)
    if argv[1:]:
        raise eval(argv[1])

sys.exit(main())
"""


def lost_output(is_full: bool) -> int:
    """Return an output on a full disk, or one whose reader has ended, as in `… | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.open("/dev/full", os.O_WRONLY) if is_full else writer


@pytest.mark.parametrize(
    ("is_full", "arguments", "status", "message"),
    [
        (False, ["1"], 141, ""),  # in the buffer
        (False, ["100000"], 141, ""),  # printed
        (True, ["1"], 5, "error: standard output: No space left on device; free "),
        (True, ["1", "ParamsError('x is 1')"], 2, "error: x is 1\n"),
    ],
)
def test_an_output_that_cannot_be_written(tmp_path, is_full, arguments, status, message):
    """A reader that ends first gives no message, also for lines that are in the buffer when the program ends."""
    command = [sys.executable, "-c", PRINTING, *arguments]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    streams = {"stdout": lost_output(is_full), "stderr": subprocess.PIPE}

    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, **streams)

    assert done.returncode == status
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)
    assert (tmp_path / "before").exists()


SAYING = """
import sys
from pathlib import Path
from lm.core.errors import ParamsError, exit_with_status
from lm.core.messages import say

@exit_with_status
def main(argv):
    say("words")
    say("words", file=sys.stderr)
    Path("saved").touch()
    say("words")
    if argv:
        raise ParamsError("x is 1")

sys.exit(main())
"""


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["fail"], 2)])
def test_words_that_cannot_be_written_decide_nothing(tmp_path, arguments, status):
    lost = lost_output(is_full=not arguments)
    command = [sys.executable, "-c", SAYING, *arguments]
    environment = {"PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=lost, stderr=lost)

    assert done.returncode == status
    assert (tmp_path / "saved").exists()


# In a run of `dvc exp run`.


def experiment(tmp_path, monkeypatch, where: str):
    """Enter a folder of a repository, as DVC starts a stage of an experiment there."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("DVC_EXP_NAME", "late-deer")
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / where)


def test_a_copy_of_a_shallow_clone_is_refused_before_work(tmp_path, monkeypatch, capsys):
    experiment(tmp_path, monkeypatch, ".dvc/tmp/exps/standalone/tmp1")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/shallow").write_text("ab\n")
    done = []

    status = errors.exit_with_status(done.append)([])

    assert status == 5
    assert done == []
    assert "run `git fetch --unshallow` there first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "where", "is_advised"),
    [
        (errors.ParamsError("a"), ".", True),
        (errors.EnvironmentFailure("a"), ".", False),
        (errors.ParamsError("a"), ".dvc/tmp/exps/t", False),
    ],
)
def test_a_refused_parameter_of_an_experiment_says_how_to_undo_it(
    tmp_path, monkeypatch, capsys, error, where, is_advised
):
    experiment(tmp_path, monkeypatch, where)

    failing(error)([])

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: a"
    assert ("`make back` undoes it" in lines[-1]) == is_advised

    monkeypatch.delenv("DVC_EXP_NAME")
    failing(error)([])
    assert capsys.readouterr().err == "error: a\n", "outside of an experiment there is nothing to undo"
