"""Read changed files with every reader: nothing may run, hang, crash, write elsewhere or take much memory.

    PYTHONPATH=src:tests python tests/torture/hostile_files.py [--share 0.01] [--only READER]

One file of a small good example is changed as an attacker or a bad disk would. The reader must refuse it with an error
of lm.core.errors, or read it as what it is. Inputs are read in forks; an input is the name of its reader and a seed.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import mmap
import os
import pickle
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before torch

import numpy as np
import torch
from record import record

from lm.core.errors import UserError
from lm.core.files import sha256_file, write_json
from lm.core.params import read_section
from lm.model.weights import RECORD, WEIGHTS, load_trained
from lm.text.documents import MANIFEST, iter_texts
from lm.text.parquet import describe_split, write_documents
from lm.text.selection import read_dropped
from lm.text.slices import Slice
from lm.tokenizer.build import write_byte_level
from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import check_id_range, check_tokenizer, document_spans, open_tokens, write_tokens
from lm.tokens.windows import TokenWindows
from lm.train.checkpoints import load_newest_checkpoint, save_checkpoint
from lm.train.config import TrainParams
from support import ROOT
from support.model_cases import CPU, build, write_gemma_like, write_trained
from support.selections import dropping, make_selection
from tools.common.hugging_face import read_exported_record, read_pretrained, write_pretrained

HANG_S, PER_FORK = 10, 200
SPARE_BYTES = 64 << 20  # beyond twice the files: buffers, and modules loaded late
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.bind")
TINY = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "head_dim": 4, "d_model": 4, "d_ff": 8, "max_seq_len": 16}
DESCRIBED = {"tokenizer": {"kind": "bpe", "vocab_size": 257, "eot_id": 256, "sha256": "t"}}
TEXT = Slice("train", 0, None)
STATE = "run/checkpoint-000000001"

# Good examples, and what a stage does with them.


def write_token_file(folder: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 256, 96)
    ids = np.where(ids % 16 == 0, 256, ids).astype("<u2")
    write_tokens(folder / "x.bin", [ids], "uint16", lambda: DESCRIBED)


def read_token_file(folder: Path) -> object:
    tokens = open_tokens(folder / "x.bin")
    check_id_range(tokens)
    check_tokenizer(tokens, "t")
    windows = TokenWindows(tokens.ids, 8, 2, seed=1).batch(3)
    return tokens.ids[:].tobytes(), document_spans(tokens).tobytes(), windows[0].tobytes()


def write_selected(folder: Path) -> None:
    raw = folder / "raw"
    for split in ("train", "validation"):
        texts = ["int main(void)", "\n  return 0;", "", None, "漢字 é <|endoftext|>", "x" * 50]
        write_documents(raw / split / "0000.parquet", texts)
    splits = {split: describe_split(raw, split, "text") for split in ("train", "validation")}
    write_json(raw / MANIFEST, {"source": "mine", "column": "text", "splits": splits})
    make_selection(folder / "selection", raw, dropping({("mine", "train"): [0, 2]}))


def read_selected(folder: Path) -> object:
    return str(list(iter_texts(folder / "raw", TEXT, read_dropped(folder / "selection", folder / "raw"))))


def write_ranks(folder: Path) -> None:
    write_byte_level(folder, {bytes([byte]): byte for byte in range(256)} | {b"in": 256, b"int": 257}, "bpe")


def write_gemma(folder: Path) -> None:
    write_gemma_like(folder / "out", folder / "source")
    shutil.rmtree(folder / "source")
    for path in (folder / "out").iterdir():
        path.rename(folder / path.name)


def read_vocabulary(folder: Path) -> object:
    tokenizer = load_tokenizer(folder)
    ids, lengths = tokenizer.encode_documents(["int main(void)\n", "漢字 é", ""])
    decoded = tokenizer.decode(range(min(tokenizer.vocab_size, 600)))
    return ids.tobytes(), lengths.tobytes(), decoded, tokenizer.count_bytes(ids)


def write_models(folder: Path) -> None:
    tokenizer = type("", (), {"eot_id": 8, "sha256": "t"})
    write_trained(folder, build(9, **TINY), tokenizer)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def score(model) -> bytes:
    """Return the bits of a model's output for some ids."""
    ids = torch.arange(min(3, model.config.max_seq_len)) % model.config.vocab_size
    return model.hidden(ids[None]).numpy().tobytes()


def write_state(folder: Path) -> None:
    state = {"step": 1, "model": {"w": torch.ones(3)}, "rng": torch.get_rng_state()[:8], "losses": [1.0, 2.0]}
    save_checkpoint(folder / "run", 1, state | {"segments": [{"dtype": "float32"}]})


def read_state(folder: Path) -> object:
    with contextlib.redirect_stderr(io.StringIO()):
        state = load_newest_checkpoint(folder / "run")
    with contextlib.suppress(RecursionError):  # of str(): lists in lists, which no stage prints
        return str(state)
    return "deep"


def write_export(folder: Path) -> None:
    model = build(9, **TINY)
    write_pretrained(folder, model, 8)
    write_json(folder / RECORD, {"config": dataclasses.asdict(model.config), "best": {"sha256": "s"}})


def read_export(folder: Path) -> object:
    model = read_pretrained(folder)
    read_exported_record(folder / RECORD, model, "s")
    return score(model)


def write_params(folder: Path) -> None:
    for name in ("params.yaml", "sources.yaml"):
        shutil.copyfile(ROOT / name, folder / name)


def read_params(folder: Path) -> object:
    train = read_section(folder / "params.yaml", "train", TrainParams)
    return str([train, read_section(folder / "sources.yaml", "sources.stories.train", Slice), train.max_steps])


class Reader(NamedTuple):
    """A reader. `hashes` says where its records keep hashes, which are mostly renewed after a change.

    (record, (key, …), file): the hash of a file; a file of None: {path: sha256} or [{path, sha256}].
    """

    name: str
    inputs: int  # of a full run
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    hashes: tuple = ()

    def renew(self, folder: Path) -> None:
        """Write the present hashes into the records."""
        for record_name, keys, file in self.hashes:
            with contextlib.suppress(Exception):  # a record that is not one any more
                path = folder / record_name
                content = entry = json.loads(path.read_text())
                for key in keys[:-1]:
                    entry = entry[key]
                if file:
                    entry[keys[-1]] = sha256_file(folder / file)
                else:
                    held = entry[keys[-1]]
                    for one in held:
                        if isinstance(one, dict):
                            one["sha256"] = sha256_file(path.parent / one["path"])
                        else:
                            held[one] = sha256_file(path.parent / one)
                path.write_text(json.dumps(content))

    def hashed(self, path: Path) -> bool:
        """Return whether the good example records the hash of a file, so that a change of it must be found."""
        return bool(self.hashes) and path.suffix in (".bin", ".parquet", ".tiktoken", ".pt")


RAW = [(f"raw/{MANIFEST}", ("splits", split, "files"), None) for split in ("train", "validation")]
SELECTED = [("manifest_sha256", f"raw/{MANIFEST}"), ("dropped_sha256", "selection/dropped.parquet")]
VOCABULARY = (("meta.json", ("files",), None),)
READERS = [
    Reader("X.json and X.bin", 10_000, write_token_file, read_token_file, (("x.json", ("sha256",), "x.bin"),)),
    Reader("text and selection", 5_000, write_selected, read_selected,
           (*RAW, *[("selection/details.json", (key,), file) for key, file in SELECTED])),
    Reader("ranks", 20_000, write_ranks, read_vocabulary, VOCABULARY),
    Reader("tokenizer.json", 3_000, write_gemma, read_vocabulary, VOCABULARY),
    Reader("model.json and .pt", 5_000, write_models, lambda folder: score(load_trained(folder, CPU)[0]),
           ((RECORD, ("best", "sha256"), WEIGHTS),)),
    Reader("states", 5_000, write_state, read_state, ((f"{STATE}.json", ("sha256",), f"{STATE}.pt"),)),
    Reader("exported folder", 12_000, write_export, read_export),
    Reader("params.yaml", 2_000, write_params, read_params),
]  # fmt: skip

# Changes.

NUMBERS = (0, 1, -1, 2, 127, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30)
VALUES = (
    None, True, False, "", "a", "..", "../../outside/kept", "/etc/passwd", "a\0b", "x" * 5000, "\ud800", [], {}, [[]],
    [None], {"": 0}, {"path": "/etc/passwd", "sha256": "0", "tokens": 1}, 1e308, float("nan"), float("inf"), 0.5,
    *NUMBERS,
)  # fmt: skip
SNIPPETS = (
    b"\0", b"\xff" * 8, b"null", b"[" * 5000, b'{"a":' * 2000, b"9" * 5000, b"1e999", b"NaN", b"..", b"- " * 3000,
    b"&a [*a]", b"<<: *a", b"!!python/object/apply:os.system [touch ran]", b"!!binary x", b"2001-13-45", b"*missing",
    b"\x80\x04", b"(" * 2000, b"\xf0\x9f", b"\r\n", b"=" * 40, b"AAAA 99999999999", b"!!int x", b"? [a]\n: b",
)  # fmt: skip


class Runs:
    """An object whose pickle calls exec, which makes a file."""

    def __init__(self, ran: Path):
        self.ran = ran

    def __reduce__(self):
        return exec, (f"open({str(self.ran)!r}, 'w').close()",)


def bombs(ran: Path) -> list[bytes]:
    """Return pickles that run code, claim much memory or take forever."""
    doubled: list = [1]
    for _ in range(40):
        doubled = [doubled, doubled]
    return [
        *(pickle.dumps(Runs(ran), protocol) for protocol in range(5)),
        pickle.dumps([[1, 2], Runs(ran)]),
        pickle.dumps(doubled),
        b"\x80\x02}K\x01\x85" + b"q\0h\0\x86" * 60 + b"K\x01s.",  # {((…, …), (…, …)): 1}
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"cbuiltins\nbytearray\nI9999999999\n\x85R.",
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"L" + b"9" * 100_000 + b"L\n.",
        pickle.dumps([[2**70]]),
    ]


def mutate(folder: Path, outside: Path, rng: np.random.Generator) -> Path:
    """Change one file below `folder`, or put a link, a pipe, a folder or nothing in its place; return its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    if rng.random() < 0.04:
        path.unlink()
        kind = rng.integers(8)
        if kind < 5:
            path.symlink_to([outside / "kept", outside, path, "/dev/zero", "/proc/self/mem"][kind])
        elif kind < 7:
            os.mkfifo(path) if kind == 5 else path.mkdir()
        return path
    content, fitting = path.read_bytes(), rng.random() < 0.5
    if fitting and path.suffix == ".json":
        new = changed_json(content, rng)
    elif fitting and path.suffix == ".pt":
        new = changed_zip(content, outside / "ran", rng)
    else:
        new = changed_bytes(content, rng)
    path.write_bytes(new)
    return path


def changed_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one of eight changes that every fuzzer makes."""
    data, place = bytearray(content), int(rng.integers(len(content) + 1))
    end = min(len(data), place + int(rng.integers(1, 33)))
    width = int(rng.choice([1, 2, 4, 8]))
    number = NUMBERS[rng.integers(len(NUMBERS))] % 256**width
    match rng.integers(8):
        case 0 if place < len(data):
            data[place] ^= 1 << int(rng.integers(8))
        case 1:
            del data[place:]
        case 2:
            data += rng.bytes(int(rng.integers(1, 200)))
        case 3:
            data[place:place] = data[:end]
        case 4:
            data[place : place + width] = number.to_bytes(width, "little")
        case 5:
            data[place:end] = SNIPPETS[rng.integers(len(SNIPPETS))]
        case 6:
            del data[place:end]
        case _:
            data[place:end] = rng.bytes(end - place)
    return bytes(data)


def changed_json(content: bytes, rng: np.random.Generator) -> bytes:
    """Return JSON with one value of another type, one key less, one key more, or the same key twice."""
    value = json.loads(content)
    places = list(_places(value, ()))
    *path, last = places[rng.integers(len(places))]
    holder = value
    for key in path:
        holder = holder[key]
    kind, new = rng.integers(6), VALUES[rng.integers(len(VALUES))]
    if kind == 0:
        del holder[last]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(new)] = holder.pop(last)
    elif kind == 2 and isinstance(holder, dict):
        name = json.dumps(last)
        return json.dumps(value).replace(name, f"{name}: {json.dumps(new)}, {name}", 1).encode()
    elif kind == 3 and type(holder[last]) is int:
        holder[last] += int(rng.choice([1, -1, 2, 256]))
    else:
        holder[last] = new
    return json.dumps(value, ensure_ascii=bool(rng.integers(2))).encode("utf-8", "surrogatepass")


def _places(value, path: tuple):
    """Yield the path of each value inside a JSON value, at most 50 of each list or object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:50]:
        yield (*path, key)
        yield from _places(item, (*path, key))


def changed_zip(content: bytes, ran: Path, rng: np.random.Generator) -> bytes:
    """Return a zip with one entry changed, renamed, compressed, doubled, or replaced by a pickle."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    at, kind, method = int(rng.integers(len(entries))), rng.integers(6), zipfile.ZIP_STORED
    name, data = entries[at]
    if kind == 0:
        data = changed_bytes(data, rng)
    elif kind == 1:
        name = str(rng.choice(["../../outside/ran", "/tmp/ran", name + "\0", "/", "archive/data/0", name.upper()]))
    elif kind == 2:
        data, method = data + bytes(4 << 20), zipfile.ZIP_DEFLATED
    elif kind == 3:
        entries.append((name, changed_bytes(data, rng)))
    else:
        at = next(i for i, (name, _) in enumerate(entries) if name.endswith("data.pkl"))
        name, several = entries[at][0], bombs(ran)
        data = several[rng.integers(len(several))] if kind == 4 else changed_bytes(entries[at][1], rng)
    entries[at] = name, data
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method, compresslevel=1) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return packed.getvalue()


# Attempts.


class Watch:
    """What an audit hook saw while an input was read: processes, connections, files opened for writing elsewhere."""

    def __init__(self):
        self.inside, self.seen = "", []

    def hook(self, event: str, args: tuple) -> None:
        """Note a forbidden event."""
        if self.inside and (event in FORBIDDEN or (event == "exec" and "open(" in str(args[0]))):
            self.seen.append(event)
        elif self.inside and event == "open" and isinstance(args[2], int):
            path = os.path.realpath(args[0]) if isinstance(args[0], str) else ""
            elsewhere = path and not path.startswith((self.inside, "/dev/", tempfile.gettempdir()))
            if elsewhere and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.seen.append(f"wrote {path}")


class Trial:
    """A reader's good example, in memory, and where its mutants are read."""

    def __init__(self, reader: Reader, base: Path):
        self.reader, self.watch = reader, Watch()
        self.folder, self.outside = base / "inside", base / "outside"
        self.folder.mkdir()
        self.outside.mkdir()
        (self.outside / "kept").write_text("kept")
        reader.write(self.folder)
        self.good = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self.result = reader.read(self.folder)

    def restore(self) -> None:
        """Make the folder hold the good example alone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path, content in self.good.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def try_input(self, seed: int) -> str:
        """Read the mutant of a seed; return "read", "refused", or what is wrong."""
        self.restore()
        rng = np.random.default_rng(seed)
        changed = mutate(self.folder, self.outside, rng)
        renewed = changed.is_file() and not changed.is_symlink() and rng.random() < 0.7
        if renewed:
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
        if self.watch.seen:
            return ", ".join(self.watch.seen)
        if sorted(path.name for path in self.outside.iterdir()) != ["kept"] or Path("ran").exists():
            return "code ran, or a file was written outside"
        if grown > 2 * num_bytes + SPARE_BYTES:
            return f"took {grown >> 20} MiB for {num_bytes} bytes"
        if outcome == "read" and not renewed and self.reader.hashed(changed) and result != self.result:
            return "another result in spite of a recorded hash"
        return outcome


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_reader(reader: Reader, count: int) -> tuple[dict[str, int], list[str]]:
    """Return how many inputs were read and refused, and what went wrong with the others."""
    with tempfile.TemporaryDirectory() as base, contextlib.chdir(base):
        trial, shared = Trial(reader, Path(base)), mmap.mmap(-1, 24)
        log, seed = Path(base) / "wrong", 0
        log.touch()
        while seed < count:
            child = os.fork()
            if not child:
                read_in_fork(trial, seed, min(seed + PER_FORK, count), shared, log)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            seed, read, refused = struct.unpack("qqq", shared[:])
            if status:
                with open(log, "a") as file:
                    print(seed, "hang" if status == -signal.SIGALRM else f"crash: {status}", file=file)
                seed += 1
                shared[:] = struct.pack("qqq", seed, read, refused)
        return {"read": read, "refused": refused}, log.read_text().splitlines()


def read_in_fork(trial: Trial, begin: int, end: int, shared: mmap.mmap, log: Path) -> None:
    """Try inputs, noting in `shared` the present one and the counts; end this process."""
    _, read, refused = struct.unpack("qqq", shared[:])
    counts = {"read": read, "refused": refused}
    sys.addaudithook(trial.watch.hook)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (2 << 30), resource.RLIM_INFINITY))
    try:
        for seed in range(begin, end):
            shared[:] = struct.pack("qqq", seed, *counts.values())
            signal.alarm(HANG_S)
            outcome = trial.try_input(seed)
            signal.alarm(0)
            if outcome in counts:
                counts[outcome] += 1
            else:
                with open(log, "a") as file:
                    print(seed, " ".join(outcome.split()), file=file)
        shared[:] = struct.pack("qqq", end, *counts.values())
        os._exit(0)
    finally:  # an error of this program; it must not reach the parent's folders, which `with` would delete
        os._exit(1)


def main(argv: list[str] | None = None) -> int:
    """Try all readers and record a full run; return 1 if an input did what it must not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of a full run")
    parser.add_argument("--only", help="the name of one reader")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    started, totals, wrong = time.monotonic(), {"read": 0, "refused": 0}, 0
    readers = [reader for reader in READERS if args.only in (None, reader.name)]
    for reader in readers:
        counts, lines = run_reader(reader, max(1, round(reader.inputs * args.share)))
        totals, wrong = {key: totals[key] + counts[key] for key in totals}, wrong + len(lines)
        print(f"{reader.name}: {counts}, {len(lines)} wrong", *lines, sep="\n  ", flush=True)
    if args.share == 1 and not args.only and not wrong:
        inputs = sum(reader.inputs for reader in READERS)
        record("hostile_files", {"readers": len(READERS), "inputs": inputs, **totals, "lost": 0}, started)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
