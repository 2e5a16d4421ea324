"""A failure prints one sentence and returns an exit code; --debug adds the traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

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
        (errors.DataError("no text"), 3, "error: no text"),
        (errors.IntegrityError("altered"), 4, "error: altered"),
        (errors.EnvironmentFailure("offline"), 5, "error: offline"),
        (errors.DivergedError("nan"), 6, "error: nan"),
        (errors.BusyError("busy"), 75, "error: busy"),
        (errors.Interrupted(15, "stopped"), 143, "error: stopped"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (MemoryError(), 5, "error: out of memory"),
        (OSError(28, "No space left on device", "x.bin"), 5, "error: x.bin: No space left on device"),
    ],
)
def test_each_error_has_an_exit_code(capsys, error, code, sentence):
    main = failing(error)
    assert main([]) == code
    err = capsys.readouterr().err
    assert err.startswith(sentence) and len(err.splitlines()) == 1
    assert main(["--debug"]) == code
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "in main\n    raise error" in shown and shown.splitlines()[-1].startswith(sentence)


@pytest.mark.parametrize("number", [*errors.REMEDIES, errno.ENOSYS, errno.ENXIO])
def test_an_error_of_the_system_has_a_remedy(capsys, number):
    main = failing(OSError(number, os.strerror(number), "x.bin"))

    assert main([]) == 5

    what, remedy = capsys.readouterr().err.strip().split("; ", 1)
    assert what == f"error: x.bin: {os.strerror(number)}" and len(remedy) > 15


def test_an_error_of_the_system_without_a_file_says_how_to_find_the_place(capsys):
    assert failing(OSError(errno.ENOSYS, "Function not implemented"))([]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: Function not implemented; add --debug to the command of the stage or tool")


def test_an_error_that_names_no_file_gets_its_name():
    with pytest.raises(OSError, match="other") as caught, errors.names_file("x.bin"):
        raise OSError(5, "Input/output error", "other")
    assert caught.value.filename == "other"
    with pytest.raises(OSError, match=r"x\.bin"), errors.names_file("x.bin"):
        raise OSError(5, "Input/output error")
    with pytest.raises(BrokenPipeError) as broken, errors.names_file("x.bin"):
        raise BrokenPipeError(32, "Broken pipe")
    assert broken.value.filename is None, "a print has failed, not the file"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())([])


PRINTING = """
import sys
from pathlib import Path
from lm.core.errors import ParamsError, exit_with_status

@exit_with_status
def main(argv):
    Path("before").touch()
    print("a line\\n" * int(argv[0]), flush=int(argv[0]) > 1)
    if argv[1:]:
        raise ParamsError("x is 1")

sys.exit(main())
"""


@pytest.mark.parametrize(("arguments", "status"), [(["1"], 141), (["100000"], 141), (["1", "fail"], 2)])
def test_a_reader_that_ends_first_gives_no_message(tmp_path, arguments, status):
    """`… | head`: also for lines that are still in the buffer when the program ends."""
    program = subprocess.Popen(
        [sys.executable, "-c", PRINTING, *arguments], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    program.stdout.close()
    assert program.stderr.read() == ("error: x is 1\n" if status == 2 else "")
    assert program.wait() == status and Path(tmp_path, "before").exists()


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
@pytest.mark.parametrize("full", [False, True], ids=["no reader", "full disk"])
def test_words_that_cannot_be_written_decide_nothing(tmp_path, arguments, status, full):
    reader, writer = os.pipe()
    os.close(reader)
    lost = os.open("/dev/full", os.O_WRONLY) if full else writer

    done = subprocess.run(
        [sys.executable, "-c", SAYING, *arguments], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")},
        stdout=lost, stderr=lost,
    )  # fmt: skip

    assert done.returncode == status and (tmp_path / "saved").exists()


# In a run of `dvc exp run`.


def experiment(tmp_path, monkeypatch, where: str):
    """Enter a folder of a repository, as DVC starts a stage of an experiment there."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("DVC_EXP_NAME", "late-deer")
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / where)


@pytest.mark.parametrize(
    ("where", "is_shallow", "status"),
    [(".dvc/tmp/exps/standalone/tmp1", True, 5), (".dvc/tmp/exps/tmp2", False, 0), (".", True, 0), ("sub", True, 0)],
)
def test_a_copy_of_a_shallow_clone_is_refused_before_work(tmp_path, monkeypatch, capsys, where, is_shallow, status):
    experiment(tmp_path, monkeypatch, where)
    (tmp_path / ".git").mkdir()
    if is_shallow:
        (tmp_path / ".git/shallow").write_text("ab\n")
    done = []
    assert errors.exit_with_status(done.append)([]) == status and bool(done) == (status == 0)
    error = capsys.readouterr().err
    assert ("run `git fetch --unshallow` there first" in error) == (status == 5)


@pytest.mark.parametrize(
    ("error", "where", "is_advised"),
    [
        (errors.ParamsError("a"), ".", True), (errors.DataError("a"), ".", False),
        (errors.ParamsError("a"), ".dvc/tmp/exps/t", False),
    ],
)  # fmt: skip
def test_a_refused_parameter_of_an_experiment_says_how_to_undo_it(
    tmp_path, monkeypatch, capsys, error, where, is_advised
):
    def main(argv):
        raise error

    experiment(tmp_path, monkeypatch, where)
    errors.exit_with_status(main)([])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: a" and ("`make back` undoes it" in lines[-1]) == is_advised
    monkeypatch.delenv("DVC_EXP_NAME")
    errors.exit_with_status(main)([])
    assert capsys.readouterr().err == "error: a\n", "without DVC nothing was written"
