"""Read mutated files with every reader: nothing may run, hang, crash, write elsewhere or take much memory.

    PYTHONPATH=src:tests python tests/torture/hostile_files.py [--share 0.01] [--only READER]

An input is refused with one of the errors of lm.core.errors, or read as what it is. Forked processes read the inputs;
an input is its reader's name and a seed, and `check(reader, seed)` tries one again in this process.
"""

import argparse
import contextlib
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from hostile_mutations import mutate
from hostile_readers import READERS, Reader
from record import record

from lm.core.errors import UserError

HANG_S = 10
SPARE_BYTES = 64 << 20  # beyond twice the files: buffers, and modules loaded late
PER_FORK = 200
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.bind")


class Watch:
    """What an audit hook saw of the input being read: processes, connections, files opened for writing elsewhere."""

    def __init__(self):
        self.inside, self.seen = "", []

    def hook(self, event: str, args: tuple) -> None:
        """Note a forbidden event."""
        if not self.inside:
            return
        if event in FORBIDDEN or (event == "exec" and "open(" in str(args[0])):
            self.seen.append(event)
        elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            path = os.path.realpath(args[0]) if isinstance(args[0], str) else ""
            if path and not path.startswith((self.inside, "/dev/", tempfile.gettempdir())):
                self.seen.append(f"wrote {path}")


class Bench:
    """A reader's good example, in memory, and where its mutants are read."""

    def __init__(self, reader: Reader, base: Path, watch: Watch):
        self.reader, self.watch = reader, watch
        self.folder, self.outside = base / "inside", base / "outside"
        self.folder.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept")
        reader.write(self.folder)
        self.good = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self.result = reader.read(self.folder)
        self.restore()

    def restore(self) -> None:
        """Make the folder hold the good example alone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path, content in self.good.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def try_input(self, seed: int) -> str:
        """Read the mutant of a seed; return "read", "refused", or what is wrong."""
        rng = np.random.default_rng(seed)
        changed = mutate(self.folder, self.outside, rng)
        renewed = changed.is_file() and not changed.is_symlink() and rng.random() < 0.7
        if self.reader.renew and renewed:
            self.reader.renew(self.folder)
        num_bytes = sum(path.lstat().st_size for path in self.folder.rglob("*"))
        before, self.watch.inside, self.watch.seen = peak_bytes(), str(self.folder), []
        try:
            outcome, result = "read", self.reader.read(self.folder)
        except (UserError, OSError) as error:
            outcome, result = ("refused", None) if str(error) else ("an error without words", None)
        except BaseException as error:
            where = [f for f in traceback.extract_tb(error.__traceback__) if "/src/lm/" in f.filename]
            place = f"{Path(where[-1].filename).name}:{where[-1].lineno}" if where else "?"
            outcome, result = f"{type(error).__name__} at {place}: {str(error)[:120]}", None
        finally:
            self.watch.inside = ""
        grown = peak_bytes() - before
        self.restore()
        if self.watch.seen:
            return ", ".join(self.watch.seen)
        if sorted(path.name for path in self.outside.iterdir()) != ["kept"] or Path("ran").exists():
            return "code ran, or a file was written outside"
        if grown > 2 * num_bytes + SPARE_BYTES:
            return f"took {grown >> 20} MiB for {num_bytes} bytes"
        if outcome == "read" and not renewed and self.reader.hashed(changed):
            return outcome if result == self.result else "another result in spite of a recorded hash"
        return outcome


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(name: str, seed: int) -> str:
    """Return what becomes of one input, in this process; raise TimeoutError if it takes long."""

    def stop(*_):
        raise TimeoutError(f"{name}, {seed}: more than {HANG_S} s")

    (reader,) = (reader for reader in READERS if reader.name == name)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with tempfile.TemporaryDirectory() as base, contextlib.chdir(base):
            bench = Bench(reader, Path(base), Watch())
            signal.alarm(HANG_S)
            return bench.try_input(seed)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_reader(reader: Reader, count: int, watch: Watch) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """Return how many inputs were read and refused, and (seed, what is wrong) of the others."""
    with tempfile.TemporaryDirectory() as base, contextlib.chdir(base):
        bench, shared = Bench(reader, Path(base), watch), mmap.mmap(-1, 24)
        counts, wrong, seed = {"read": 0, "refused": 0}, [], 0
        while seed < count:
            status = in_fork(bench, range(seed, min(seed + PER_FORK, count)), shared, Path(base) / "wrong")
            seed, read, refused = struct.unpack("qqq", shared[:])
            counts["read"] += read
            counts["refused"] += refused
            if (Path(base) / "wrong").exists():
                lines = (Path(base) / "wrong").read_text().splitlines()
                wrong += [(int(number), reason) for number, reason in (line.split(" ", 1) for line in lines)]
                (Path(base) / "wrong").unlink()
            if status:
                name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
                wrong.append((seed, "hang" if name == "SIGALRM" else f"crash: {name}"))
                seed += 1
                bench.restore()
        return counts, wrong


def in_fork(bench: Bench, seeds: range, shared: mmap.mmap, wrong: Path) -> int:
    """Try inputs in a forked process, which notes where it is in `shared`; return its status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    counts = {"read": 0, "refused": 0}
    sys.addaudithook(bench.watch.hook)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 2)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (2 << 30), resource.RLIM_INFINITY))
    for seed in seeds:
        shared[:] = struct.pack("qqq", seed, *counts.values())
        signal.alarm(HANG_S)
        try:
            outcome = bench.try_input(seed)
        except BaseException:  # of this program; it must not reach the parent's folders, which `with` would delete
            os._exit(1)
        signal.alarm(0)
        if outcome in counts:
            counts[outcome] += 1
        else:
            with open(wrong, "a") as file:
                print(seed, " ".join(outcome.split()), file=file)
    shared[:] = struct.pack("qqq", seeds.stop, *counts.values())
    os._exit(0)


def main() -> None:
    """Try all readers; write benchmarks/results/torture/hostile_files.json of a full run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of a full run")
    parser.add_argument("--only", help="the name of one reader")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, watch, totals, wrong = time.monotonic(), Watch(), {"read": 0, "refused": 0}, 0
    for reader in READERS:
        if args.only in (None, reader.name):
            begun = time.monotonic()
            counts, failed = run_reader(reader, round(reader.inputs * args.share), watch)
            totals, wrong = {key: totals[key] + counts[key] for key in totals}, wrong + len(failed)
            print(f"{reader.name}: {counts}, {len(failed)} wrong, {time.monotonic() - begun:.0f} s", flush=True)
            for seed, reason in failed:
                print(f"  {reader.name!r}, {seed}: {reason}", flush=True)
    if wrong:
        sys.exit(f"error: {wrong} inputs did what they must not")
    if args.share == 1 and not args.only:
        inputs = sum(reader.inputs for reader in READERS)
        record("hostile_files", {"readers": len(READERS), "inputs": inputs, **totals, "lost": 0}, started)


if __name__ == "__main__":
    main()
