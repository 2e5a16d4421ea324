"""Files are complete or absent, synced before they are renamed, and have one writer."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lm.core.errors import BusyError, EnvironmentFailure, IntegrityError
from lm.core.files import (
    atomic_folder,
    atomic_write,
    check_types,
    make_folder,
    output_lock,
    read_json,
    safe_join,
    sha256_file,
    write_json,
    write_text,
)
from lm.core.params import read_yaml
from support import ROOT


@pytest.fixture
def calls(monkeypatch):
    """Record the order of syncs and renames: ("fsync", open file) and ("replace", target)."""
    found = []
    fsync = os.fsync
    replace = os.replace

    def note_fsync(descriptor):
        found.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(source, target):
        found.append(("replace", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is synced")
def test_content_is_synced_before_the_rename(tmp_path, calls):
    path = tmp_path / "x.bin"
    write_text(path, "content")
    assert [kind for kind, _ in calls] == ["fsync", "replace", "fsync"]
    assert calls[0][1].endswith(".tmp") and calls[1][1] == str(path) and calls[2][1] == str(tmp_path)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is synced")
def test_a_folder_is_synced_before_the_rename(tmp_path, calls):
    with output_lock(tmp_path / "a" / "b" / "x"):
        assert calls == [("fsync", str(tmp_path)), ("fsync", str(tmp_path / "a"))], "the parents of new folders"
    calls.clear()
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("content")
    kinds = [kind for kind, _ in calls]
    synced = {os.path.relpath(path, folder) for _, path in calls[: kinds.index("replace")]}
    assert synced == {".", "inner", "inner/file"} and calls[-1] == ("fsync", str(tmp_path))


@pytest.mark.parametrize("before", [None, "old"])
def test_a_failure_while_writing_keeps_the_old_content(tmp_path, before):
    path = tmp_path / "x.bin"
    if before:
        path.write_text(before)
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half of the n")
        file.flush()
        assert (path.read_text() if path.exists() else None) == before
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == (["x.bin"] if before else [])
    assert not before or path.read_text() == before


def test_a_folder_is_replaced_completely_or_not_at_all(tmp_path):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "out") as folder:
            (folder / content).touch()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "out") as folder:
        (folder / "newer").touch()
        raise RuntimeError
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_failed_rename_leaves_the_old_folder(tmp_path, monkeypatch):
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "old").touch()
    replace = os.replace

    def fail_for_new(source, target):
        if os.path.basename(source) == "new":
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_for_new)
    with pytest.raises(OSError, match="Input/output"), atomic_folder(tmp_path / "out"):
        pass
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["old"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_hard_link_is_never_written_through(tmp_path):
    cached = tmp_path / "cached"
    cached.write_text("cached")
    cached.chmod(0o444)
    os.link(cached, tmp_path / "x")
    write_text(tmp_path / "x", "new")
    assert cached.read_text() == "cached" and (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize(
    ("content", "sentence"), [(None, "missing; run `dvc"), ("{", "not valid JSON.*; run `dvc"), ("[]", "holds a list")]
)
def test_a_broken_json_file_is_named_with_a_remedy(tmp_path, content, sentence):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(IntegrityError, match=rf"x\.json: {sentence}"):
        read_json(path)
    if content != "[]":
        with pytest.raises(IntegrityError, match=r"; name another folder$"):
            read_json(path, "name another folder")


def test_json_is_strict(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())
    write_json(tmp_path / "x.json", {"b": 1, "a": "ü"})
    assert (tmp_path / "x.json").read_bytes() == '{\n  "b": 1,\n  "a": "ü"\n}\n'.encode()


HOLD = """
import sys
from lm.core.files import output_lock
with output_lock(sys.argv[1]):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lock of tmp_path/out until it reads a line."""
    command = [sys.executable, "-c", HOLD, tmp_path / "out"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_gets_the_id_of_the_first(tmp_path, holder):
    with pytest.raises(BusyError, match=f"out: process {holder.pid} is writing it"), output_lock(tmp_path / "out"):
        pass
    holder.kill()
    holder.wait(30)
    with output_lock(tmp_path / "out"):  # the lock ended with its holder
        pass


def test_a_waiting_process_gets_the_free_lock(tmp_path, holder, capsys):
    threading.Timer(0.3, holder.communicate, ["go\n"]).start()
    with output_lock(tmp_path / "out", wait=True):
        assert holder.wait(30) == 0
    assert f"waiting for process {holder.pid}" in capsys.readouterr().err


def test_temporary_files_of_ended_processes_are_removed(tmp_path, holder):
    ended = subprocess.Popen(["true"])
    ended.wait()
    of_ended = tmp_path / f".x.json.{ended.pid}.tmp"
    of_living = tmp_path / f".x.json.{holder.pid}.tmp"
    of_another_file = tmp_path / f".y.json.{ended.pid}.tmp"
    for path in (of_ended, of_living, of_another_file):
        path.touch()
    write_json(tmp_path / "x.json", {})
    assert not of_ended.exists() and of_living.exists() and of_another_file.exists()


def test_a_pipe_is_refused_without_waiting_for_bytes(tmp_path):
    os.mkfifo(tmp_path / "x")
    end = os.open(tmp_path / "x", os.O_RDWR | os.O_NONBLOCK)
    closing = threading.Timer(2, os.close, [end])  # after which a broken reader ends
    closing.start()
    with pytest.raises(IntegrityError, match="is a pipe or a device"):
        sha256_file(tmp_path / "x")
    closing.cancel()
    os.close(end)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": NaN}', '{"a": -Infinity}'])
def test_json_that_is_too_deep_or_not_a_number_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(IntegrityError, match="not valid JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "b/../../a", "", "a\0"])
def test_a_recorded_name_that_leads_outside_its_folder_is_refused(tmp_path, name):
    with pytest.raises(IntegrityError, match=r"record\.json: names the file .* must be a path inside"):
        safe_join(tmp_path, name, tmp_path / "record.json")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"n": -1, "files": []}, "n is -1"),
        ({"n": True, "files": []}, "n is True"),
        ({"n": 2**63, "files": []}, "n is 9"),
        ({"files": []}, "n is missing"),
        ({"n": 1, "files": {}}, "files is {}"),
        ({"n": 1, "files": [{"a": 5}]}, r"files\[0\].a is 5"),
    ],
)
def test_the_place_of_a_wrong_value_is_named(tmp_path, value, problem):
    with pytest.raises(IntegrityError, match=f"x.json: {problem}"):
        check_types(tmp_path / "x.json", value, {"n": int, "files": [{str: str}]}, "write it again")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_named_with_a_way_out(tmp_path, monkeypatch, number):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)

    sentence = rf"{tmp_path}/out: this disk has no file locks .* -o flock; NFS"
    with pytest.raises(EnvironmentFailure, match=sentence), output_lock(tmp_path / "out"):
        raise AssertionError("written without a lock")


def failing_sync(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("write", [write_text, lambda path, text: make_folder(path / "sub")])
def test_a_file_that_cannot_be_synced_is_named(tmp_path, monkeypatch, write):
    monkeypatch.setattr(os, "fsync", failing_sync)

    with pytest.raises(OSError, match="Input/output error") as caught:
        write(tmp_path / "x.json", "text")

    assert caught.value.filename.startswith(str(tmp_path))


@pytest.mark.parametrize("read", [read_json, read_yaml, sha256_file])
def test_a_file_that_cannot_be_read_is_named(monkeypatch, read):
    """A read of this file of Linux fails as a damaged disk does: with an error that names no file."""
    path = Path("/proc/self/mem")
    monkeypatch.setattr("lm.core.files.reject_special_file", Path)

    with pytest.raises(OSError, match="Input/output error") as caught:
        read(path)

    assert caught.value.filename == str(path)
