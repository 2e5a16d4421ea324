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


NEEDS_PROC = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is synced")


@NEEDS_PROC
def test_content_is_synced_before_the_rename(tmp_path, calls):
    path = tmp_path / "x.bin"

    write_text(path, "content")

    sync, rename, sync_of_folder = calls
    kind, synced = sync
    assert kind == "fsync"
    assert synced.endswith(".tmp")
    assert rename == ("replace", str(path))
    assert sync_of_folder == ("fsync", str(tmp_path))


@NEEDS_PROC
def test_the_parents_of_new_folders_are_synced(tmp_path, calls):
    with output_lock(tmp_path / "a" / "b" / "x"):
        assert calls == [("fsync", str(tmp_path)), ("fsync", str(tmp_path / "a"))]


@NEEDS_PROC
def test_a_folder_is_synced_before_the_rename(tmp_path, calls):
    with output_lock(tmp_path / "out"):
        calls.clear()
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("content")

    kinds = [kind for kind, _ in calls]
    before_the_rename = calls[: kinds.index("replace")]
    synced = {os.path.relpath(path, folder) for _, path in before_the_rename}
    assert synced == {".", "inner", "inner/file"}
    assert calls[-1] == ("fsync", str(tmp_path))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_while_writing(path: Path) -> None:
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half of the n")
        file.flush()
        raise RuntimeError


def test_a_failure_while_writing_keeps_the_old_content(tmp_path):
    path = tmp_path / "x.bin"
    path.write_text("old")

    fail_while_writing(path)

    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["x.bin"]


def test_a_failure_while_writing_leaves_no_new_file(tmp_path):
    fail_while_writing(tmp_path / "x.bin")

    assert names_in(tmp_path) == []


def test_a_file_keeps_its_content_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "x.bin"
    path.write_text("old")

    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"

    assert path.read_text() == "new"


def write_folder(path: Path, name: str) -> None:
    """Replace a folder by one with an empty file of this name."""
    with atomic_folder(path) as folder:
        (folder / name).touch()


def test_a_folder_is_replaced_completely(tmp_path):
    write_folder(tmp_path / "out", "old")

    write_folder(tmp_path / "out", "new")

    assert names_in(tmp_path / "out") == ["new"]


def test_a_failure_while_a_folder_is_written_keeps_the_old_one(tmp_path):
    write_folder(tmp_path / "out", "old")

    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
        raise RuntimeError

    assert names_in(tmp_path / "out") == ["old"]
    assert names_in(tmp_path) == ["out"]


def test_a_failed_rename_leaves_the_old_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "out", "old")
    replace = os.replace

    def fail_for_new(source, target):
        if os.path.basename(source) == "new":
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_for_new)

    with pytest.raises(OSError, match="Input/output"):
        write_folder(tmp_path / "out", "newer")

    assert names_in(tmp_path / "out") == ["old"]
    assert names_in(tmp_path) == ["out"]


def test_a_hard_link_is_never_written_through(tmp_path):
    cached = tmp_path / "cached"
    cached.write_text("cached")
    cached.chmod(0o444)
    link = tmp_path / "x"
    os.link(cached, link)

    write_text(link, "new")

    assert cached.read_text() == "cached"
    assert link.read_text() == "new"


@pytest.mark.parametrize(("remedy", "said"), [((), "run `dvc"), (("name another folder",), "name another folder$")])
def test_a_missing_json_file_is_named_with_a_remedy(tmp_path, remedy, said):
    with pytest.raises(IntegrityError, match=rf"x\.json: missing; {said}"):
        read_json(tmp_path / "x.json", *remedy)


@pytest.mark.parametrize(("remedy", "said"), [((), "run `dvc"), (("name another folder",), "name another folder$")])
def test_a_broken_json_file_is_named_with_a_remedy(tmp_path, remedy, said):
    path = tmp_path / "x.json"
    path.write_text("{")

    with pytest.raises(IntegrityError, match=rf"x\.json: not valid JSON.*; {said}"):
        read_json(path, *remedy)


def test_a_json_file_must_hold_an_object(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[]")

    with pytest.raises(IntegrityError, match=r"x\.json: holds a list"):
        read_json(path)


def test_what_is_not_json_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})

    assert names_in(tmp_path) == []


def test_json_keeps_the_order_and_its_characters(tmp_path):
    path = tmp_path / "x.json"

    write_json(path, {"b": 1, "a": "ü"})

    assert path.read_text(encoding="utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'


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
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_gets_the_id_of_the_first(tmp_path, holder):
    with pytest.raises(BusyError, match=f"out: process {holder.pid} is writing it"), output_lock(tmp_path / "out"):
        pass


def test_a_lock_ends_with_its_holder(tmp_path, holder):
    holder.kill()
    holder.wait(30)

    with output_lock(tmp_path / "out"):
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

    assert not of_ended.exists()
    assert of_living.exists()
    assert of_another_file.exists()


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
    path = tmp_path / "x.json"
    path.write_text(text)

    with pytest.raises(IntegrityError, match="not valid JSON"):
        read_json(path)


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
    types = {"n": int, "files": [{str: str}]}

    with pytest.raises(IntegrityError, match=f"x.json: {problem}"):
        check_types(tmp_path / "x.json", value, types, "write it again")


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


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda path: write_text(path, "text"), id="file"),
        pytest.param(lambda path: make_folder(path / "sub"), id="folder"),
    ],
)
def test_a_file_that_cannot_be_synced_is_named(tmp_path, monkeypatch, write):
    monkeypatch.setattr(os, "fsync", failing_sync)

    with pytest.raises(OSError, match="Input/output error") as caught:
        write(tmp_path / "x.json")

    assert caught.value.filename.startswith(str(tmp_path))


@pytest.mark.parametrize("read", [read_json, read_yaml, sha256_file])
def test_a_file_that_cannot_be_read_is_named(monkeypatch, read):
    """A read of this file of Linux fails as a damaged disk does: with an error that names no file."""
    path = Path("/proc/self/mem")
    monkeypatch.setattr("lm.core.files.reject_special_file", Path)

    with pytest.raises(OSError, match="Input/output error") as caught:
        read(path)

    assert caught.value.filename == str(path)
