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
        (OSError(errno.ENOSPC, "No space left", "x.bin"), 5, "error: x.bin: No space left; free some space on"),
        (OSError(errno.ENOSYS, "No function", "x.bin"), 5, "error: x.bin: No function; add --debug"),
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


def test_a_print_that_fails_is_not_named_as_the_file_that_is_written():
    with pytest.raises(BrokenPipeError) as caught, errors.names_file("x.bin"):
        raise BrokenPipeError(32, "Broken pipe")

    assert caught.value.filename is None


PRINTING = """
import sys
from lm.core.errors import ParamsError, exit_with_status

@exit_with_status
def main(argv):
    print("a line\\n" * int(argv[0]), flush=int(argv[0]) > 1)
    if argv[1:]:
        raise eval(argv[1])

sys.exit(main())
"""


def without_reader() -> int:
    """Return an output whose reader has ended, as in `… | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(
    ("output", "arguments", "status", "message"),
    [
        (without_reader, ["1"], 141, ""),  # in the buffer
        (without_reader, ["100000"], 141, ""),  # printed
        (full_disk, ["1"], 5, "error: standard output: No space left on device; free "),
        (full_disk, ["1", "ParamsError('x is 1')"], 2, "error: x is 1\n"),
    ],
)
def test_an_output_that_cannot_be_written(output, arguments, status, message):
    """A reader that ends first gives no message, also for lines that are in the buffer when the program ends."""
    command = [sys.executable, "-c", PRINTING, *arguments]
    environment = {"PYTHONPATH": str(ROOT / "src")}

    done = subprocess.run(command, env=environment, text=True, stdout=output(), stderr=subprocess.PIPE)

    assert done.returncode == status
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == bool(message)


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

    assert ("`make back` undoes it" in capsys.readouterr().err) == is_advised
