"""Files that are complete or absent: atomic writes, hashes, strict JSON, one lock per output."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

import psutil

from lm.core.errors import REPAIR, BusyError, EnvironmentFailure, IntegrityError, names_file
from lm.core.messages import say

# Options of every parquet file: equal tables give equal bytes, and reading a damaged file fails.
PARQUET = {"compression": "none", "write_page_checksum": True}


@contextlib.contextmanager
def atomic_write(path: Path | str) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` for binary writing; sync and rename it on success, remove it on an error."""
    path = Path(path)
    with _temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # a read-only hard link into DVC's cache is replaced, never written
        sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield an empty temporary folder; on success rename it to `path`, in place of the old folder."""
    path = Path(path)
    with _temporary_beside(path) as temporary:
        new = temporary / "new"
        old = temporary / "old"
        new.mkdir(parents=True)
        yield new
        _sync_tree(new)
        if path.is_dir():
            os.replace(path, old)
        try:
            os.replace(new, path)
        except OSError:
            if old.is_dir():
                os.replace(old, path)
            raise
        sync(path.parent)


@contextlib.contextmanager
def scratch_folder(path: Path | str) -> Iterator[Path]:
    """Yield an empty folder beside `path`, on the same disk, and remove it at the end."""
    path = Path(path)
    with _temporary_beside(path.with_name(f"{path.name}.scratch")) as temporary:
        temporary.mkdir()
        yield temporary


@contextlib.contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` and remove it at the end; raise EnvironmentFailure if the disk is full."""
    make_folder(path.parent)
    for left in path.parent.iterdir():  # remove those of killed processes; a zombie does not run
        writer = re.fullmatch(rf"\.{re.escape(path.name)}\.(\d+)\.tmp", left.name)
        if not writer:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if int(writer[1]) != os.getpid() and psutil.Process(int(writer[1])).status() != psutil.STATUS_ZOMBIE:
                continue
        _remove(left)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with names_file(path):
            yield temporary
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        advice = "free some space on that disk and run the same command again"
        before = "the previous content is unchanged, or in DVC's cache if DVC has run the stage"
        raise EnvironmentFailure(f"{path}: {os.strerror(error.errno)}; {advice} ({before})") from None
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and sync them so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power cut; some disks cannot sync a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with names_file(path):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    """Make all files and folders below `folder` survive a power cut, including those that libraries wrote."""
    for path in [folder, *folder.rglob("*")]:
        sync(path)


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 `text` atomically, without changing its line ends."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path | str, value) -> None:
    """Write strict JSON (NaN and infinities raise ValueError), indented, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path | str, advice: str | None = None) -> dict:
    """Read a JSON object. Raise IntegrityError if the file is missing or broken.

    advice: the remedy that the error names for a user's file; by default, to run the pipeline, which makes the file.
    """
    try:
        with names_file(path):
            text = Path(path).read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=_reject_constant)
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing; {advice or 'run `dvc repro` to make it'}") from None
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of brackets
        advice = advice or "run `dvc repro -f` to make it again"
        raise IntegrityError(f"{path}: not valid JSON ({error}); {advice}") from None
    if not isinstance(value, dict):
        raise IntegrityError(f"{path}: holds a {type(value).__name__}, not a JSON object")
    return value


def _reject_constant(name: str) -> None:
    """Raise ValueError for NaN, Infinity and -Infinity, which are not JSON."""
    raise ValueError(f"{name} is not a number")


def read_parquet(path: Path | str):
    """Return the table of a parquet file that a stage wrote. Raise IntegrityError if it is missing or damaged."""
    import pyarrow as pa  # slow to import, and not always needed
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing; run `dvc repro` to make it") from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{path}: not a whole parquet file ({reason}); {REPAIR}") from None


def check_types(path: Path, value, wanted, advice: str, name: str = "") -> None:
    """Raise IntegrityError unless a value of a JSON file has the form `wanted`.

    A form is a type, a tuple of types, [the form of each item], {key: form} or {str: the form of every value}. Integers
    are counts: from 0 to below 2^63. `name` is the place of the value in the file.
    """
    if isinstance(wanted, dict) and isinstance(value, dict):
        if missing := [key for key in wanted if key is not str and key not in value]:
            raise IntegrityError(f"{path}: {f'{name}.{missing[0]}'.lstrip('.')} is missing; {advice}")
        for key in value if str in wanted else wanted:
            check_types(path, value.get(key), wanted.get(str, wanted.get(key)), advice, f"{name}.{key}".lstrip("."))
    elif isinstance(wanted, list) and isinstance(value, list):
        for number, item in enumerate(value):
            check_types(path, item, wanted[0], advice, f"{name}[{number}]")
    else:
        types = wanted if isinstance(wanted, tuple) else (wanted,)
        if type(value) not in types or (type(value) is int and not 0 <= value < 2**63):
            raise IntegrityError(f"{path}: {name} is {repr(value)[:100]}; {advice}")


def reject_special_file(path: Path | str) -> Path:
    """Return the path. Raise IntegrityError for a pipe or a device: reading one may never end."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise IntegrityError(f"{path}: is a pipe or a device; it must be a file: replace it")
    return path


def safe_join(folder: Path, name: str, record: Path) -> Path:
    """Return folder / name. Raise IntegrityError if the name, which comes from `record`, leads out of the folder."""
    path = Path(name)
    if "\0" in name or ".." in path.parts or not path.parts or path.is_absolute():
        raise IntegrityError(f"{record}: names the file {name[:100]!r}, which must be a path inside {folder}")
    return folder / name


def sha256_file(path: Path | str) -> str:
    """Return the SHA-256 of a file in hex; the file is read in blocks. Raise IntegrityError for a pipe or a device."""
    with names_file(path), open(reject_special_file(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, recorded: str, record: str = "its record", advice: str = REPAIR) -> None:
    """Raise IntegrityError if a file is missing or does not have the SHA-256 that `record` says."""
    check_hash(path, sha256_file(path) if path.exists() else "no file", recorded, record, advice)


def check_hash(path: Path, sha256: str, recorded: str, record: str = "its record", advice: str = REPAIR) -> None:
    """Raise IntegrityError if the SHA-256 of a file, which is known, is not the one that `record` says."""
    if sha256 != recorded:
        raise IntegrityError(f"{path}: sha256 is {sha256}, {record} says {recorded}; {advice}")


def sha256_json(value) -> str:
    """Return the SHA-256 of a JSON value in hex, in canonical form (sorted keys, no white space)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_csv(path: Path | str, columns: list[str], rows: list) -> None:
    """Write rows of numbers atomically; floats keep 8 significant digits."""
    lines = [",".join(f"{v:.8g}" if isinstance(v, float) else str(v) for v in row) for row in rows]
    write_text(path, "\n".join([",".join(columns), *lines]) + "\n")


@contextlib.contextmanager
def output_lock(path: Path | str, wait: bool = False) -> Iterator[None]:
    """Hold the writer's lock of an output until the process ends; if another holds it, wait or raise BusyError."""
    path = Path(path)
    make_folder(path.parent)
    with open(path.with_name(f".{path.name}.lock"), "a+") as file:
        if not try_lock(file, path):
            file.seek(0)
            holder = file.read().strip() or "unknown"
            if not wait:
                raise BusyError(f"{path}: process {holder} is writing it; wait until it ends, or stop it")
            say(f"{path}: waiting for process {holder}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        with names_file(file.name):
            file.truncate(0)
            print(os.getpid(), end="", file=file, flush=True)
        yield


def try_lock(file: IO, path: Path) -> bool:
    """Lock the file of an output, or return False if another process has locked it.

    Raise EnvironmentFailure if the disk does not support locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        reason = f"this disk has no file locks ({os.strerror(error.errno)}), which keep two processes from writing it"
        remedy = "mount it with locks (Lustre: -o flock; NFS: with its lock service), or clone onto another disk"
        raise EnvironmentFailure(f"{path}: {reason}; {remedy}") from None
    return True
