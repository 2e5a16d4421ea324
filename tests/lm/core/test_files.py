"""Files are complete or absent, synced before they are renamed, and have one writer."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from lm.core.errors import BusyError, EnvironmentFailure, IntegrityError
from lm.core.files import (
    atomic_folder,
    atomic_write,
    check_types,
    output_lock,
    read_json,
    safe_join,
    sha256_file,
    sync,
    write_json,
    write_text,
)
from lm.core.params import read_yaml
from support import ROOT
from support.process import CAP_S, started


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


def test_a_failure_while_writing_keeps_the_old_content(tmp_path):
    old = tmp_path / "x.bin"
    old.write_text("old")

    for path in (old, tmp_path / "new.bin"):
        with pytest.raises(RuntimeError), atomic_write(path) as file:
            file.write(b"half of the n")
            file.flush()
            assert old.read_text() == "old"
            raise RuntimeError

    assert old.read_text() == "old"
    assert names_in(tmp_path) == ["x.bin"]


def write_folder(path: Path, name: str) -> None:
    """Replace a folder by one with an empty file of this name."""
    with atomic_folder(path) as folder:
        (folder / name).touch()


def test_only_a_folder_need_not_be_synced_on_a_disk_that_cannot(tmp_path, monkeypatch):
    file = tmp_path / "a file"
    file.touch()

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EINVAL, "")))
    sync(tmp_path)
    with pytest.raises(OSError):
        sync(file)

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "")))
    with pytest.raises(OSError):
        sync(tmp_path)


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "missing; run `dvc"),
        ("[" * 100_000, "not valid JSON.*; run `dvc"),
        ('{"a": NaN}', "not valid JSON.*; run `dvc"),
        ("[]", "holds a list"),
    ],
    ids=["missing", "deep", "nan", "list"],
)
def test_a_json_file_that_cannot_be_read_is_named_with_a_remedy(tmp_path, text, problem):
    path = tmp_path / "x.json"
    if text:
        path.write_text(text)

    with pytest.raises(IntegrityError, match=rf"x\.json: {problem}"):
        read_json(path)


def test_json_with_a_number_that_other_programs_cannot_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"loss": float("nan")})


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
    process = started(*command, env=environment, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_writer_gets_the_id_of_the_first(tmp_path, holder):
    with pytest.raises(BusyError, match=f"out: process {holder.pid} is writing it"), output_lock(tmp_path / "out"):
        pass


def test_a_waiting_process_gets_the_lock_that_ends_with_its_holder(tmp_path, holder, monkeypatch):
    said = []

    def let_the_holder_go(line, file):
        said.append(line)
        print("go", file=holder.stdin, flush=True)

    monkeypatch.setattr("lm.core.files.say", let_the_holder_go)

    with output_lock(tmp_path / "out", wait=True):
        assert holder.wait(CAP_S) == 0

    assert said == [f"{tmp_path / 'out'}: waiting for process {holder.pid}"]


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


def test_a_recorded_name_that_leads_outside_its_folder_is_refused(tmp_path):
    for name in ("../a", "/etc/passwd", "b/../../a", "", "a\0"):
        with pytest.raises(IntegrityError, match=r"record\.json: names the file .* must be a path inside"):
            safe_join(tmp_path, name, tmp_path / "record.json")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"n": -1, "files": []}, "n is -1"),
        ({"files": []}, "n is missing"),
        ({"n": 1, "files": [{"a": 5}]}, r"files\[0\].a is 5"),
    ],
)
def test_the_place_of_a_wrong_value_is_named(tmp_path, value, problem):
    types = {"n": int, "files": [{str: str}]}

    with pytest.raises(IntegrityError, match=f"x.json: {problem}"):
        check_types(tmp_path / "x.json", value, types, "write it again")


def test_a_disk_without_locks_is_named_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "no")))

    sentence = rf"{tmp_path}/out: this disk has no file locks .* -o flock; NFS"
    with pytest.raises(EnvironmentFailure, match=sentence), output_lock(tmp_path / "out"):
        raise AssertionError("written without a lock")


@pytest.mark.parametrize("read", [read_json, read_yaml, sha256_file])
def test_a_file_that_cannot_be_read_is_named(monkeypatch, read):
    """A read of this file of Linux fails as a damaged disk does: with an error that names no file."""
    path = Path("/proc/self/mem")
    monkeypatch.setattr("lm.core.files.reject_special_file", Path)

    with pytest.raises(OSError, match="Input/output error") as caught:
        read(path)

    assert caught.value.filename == str(path)
