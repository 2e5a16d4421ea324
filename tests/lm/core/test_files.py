"""Files are complete or absent, synced before they are renamed, and have one writer."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from lm.core.errors import EnvironmentFailure, IntegrityError
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
    """The syncs and the renames, in order: "sync <open file>" and "rename <target>"."""
    found = []
    fsync = os.fsync
    replace = os.replace

    def note_fsync(descriptor):
        found.append("sync " + os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_replace(source, target):
        found.append(f"rename {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return found


NEEDS_PROC = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is synced")


@NEEDS_PROC
def test_content_is_synced_before_the_rename(tmp_path, calls):
    write_text(tmp_path / "x.bin", "content")

    temporary = tmp_path / f".x.bin.{os.getpid()}.tmp"
    assert calls == [f"sync {temporary}", f"rename {tmp_path / 'x.bin'}", f"sync {tmp_path}"]


@NEEDS_PROC
def test_a_folder_is_synced_before_the_rename(tmp_path, calls):
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("content")

    *syncs, rename, sync_of_parent = calls
    assert set(syncs) == {f"sync {folder}", f"sync {folder / 'inner'}", f"sync {folder / 'inner' / 'file'}"}
    assert rename == f"rename {tmp_path / 'out'}"
    assert sync_of_parent == f"sync {tmp_path}"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failure_while_writing_keeps_the_old_content(tmp_path):
    path = tmp_path / "x.bin"
    path.write_text("old")

    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half of the n")
        raise RuntimeError

    assert path.read_text() == "old"
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


def test_a_waiting_process_gets_the_lock_that_ends_with_its_holder(tmp_path, monkeypatch):
    output = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    pipe = subprocess.PIPE
    holder = started(sys.executable, "-c", HOLD, output, env=environment, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout.readline() == "held\n"
    said = []

    def let_the_holder_go(line, file):
        said.append(line)
        print("go", file=holder.stdin, flush=True)

    monkeypatch.setattr("lm.core.files.say", let_the_holder_go)

    with output_lock(output, wait=True):
        assert holder.wait(CAP_S) == 0

    assert said == [f"{output}: waiting for process {holder.pid}"]


def test_temporary_files_of_ended_processes_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    of_ended = tmp_path / f".x.json.{ended.pid}.tmp"
    of_living = tmp_path / f".x.json.{os.getppid()}.tmp"
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
