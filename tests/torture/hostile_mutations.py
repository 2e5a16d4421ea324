"""Change one file of a folder as an attacker or a bad disk would: bytes, JSON values, zip entries, links, pickles."""

import functools
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np

NUMBERS = (0, 1, -1, 2, 127, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30)
VALUES = (
    None, True, False, "", "a", "..", "../../outside/kept", "/etc/passwd", "a\0b", "x" * 5000, "\ud800", [], {}, [[]],
    [None], {"": 0}, {"path": "/etc/passwd", "sha256": "0", "tokens": 1}, 1e308, float("nan"), float("inf"), 0.5,
    *NUMBERS,
)  # fmt: skip
SNIPPETS = (
    b"\0", b"\xff" * 8, b"null", b"[" * 5000, b'{"a":' * 2000, b"9" * 5000, b"1e999", b"NaN", b"..", b"%s",
    b"- " * 3000, b"&a [*a]", b"<<: *a", b"!!python/object/apply:os.system [touch ran]", b"!!binary x", b"2001-13-45",
    b"*missing", b": ? !!set", b"\x80\x04", b"(" * 2000, b"\xf0\x9f", b"\r\n", b"=" * 40, b"AAAA 99999999999",
    b"!!int x", b"!!float x", b"!!timestamp x", b"? [a]\n: b",
)  # fmt: skip
TOUCH = "open({!r}, 'w').close()"


class Runs:
    """An object whose pickle calls exec, which makes a file."""

    def __init__(self, ran: Path):
        self.ran = ran

    def __reduce__(self):
        return exec, (TOUCH.format(str(self.ran)),)


@functools.cache
def bombs(ran: Path) -> list[bytes]:
    """Return pickles that run code, claim much memory or take forever."""
    doubled: list | tuple = [1]
    for _ in range(40):
        doubled = [doubled, doubled]
    row = list(range(300, 2300))
    return [
        *(pickle.dumps(Runs(ran), protocol) for protocol in range(5)),
        pickle.dumps([[1, 2], Runs(ran)]),
        pickle.dumps(doubled),
        b"\x80\x02}K\x01\x85" + b"q\0h\0\x86" * 60 + b"K\x01s.",  # {((…, …), (…, …)): 1}
        pickle.dumps([row] * 100_000),
        b"\x80\x02]r\xff\xff\xff\x7f.",
        b"cbuiltins\nbytearray\nI9999999999\n\x85R.",
        pickle.dumps({"a": bytearray(10)}),
        b"(" * 3000 + b"l" * 3000 + b".",
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"L" + b"9" * 100_000 + b"L\n.",
        b"I01\n.",
        pickle.dumps([[True, False]]),
        pickle.dumps([[1.5]]),
        pickle.dumps([]),
        pickle.dumps([[]]),
        pickle.dumps([[2**70]]),
    ]  # fmt: skip


def mutate(folder: Path, outside: Path, rng: np.random.Generator) -> Path:
    """Change one file below `folder`; return its path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[rng.integers(len(files))]
    if rng.random() < 0.04:
        replace(path, outside, rng)
        return path
    content = path.read_bytes()
    for _ in range(1 + int(rng.integers(3)) * (rng.random() < 0.3)):
        content = changed(path, content, outside / "ran", rng)
    path.write_bytes(content)
    return path


def replace(path: Path, outside: Path, rng: np.random.Generator) -> None:
    """Put a link, a pipe or a folder in the place of a file, or nothing."""
    path.unlink()
    kind = rng.integers(8)
    if kind < 5:
        path.symlink_to([outside / "kept", outside, path, "/dev/zero", "/proc/self/mem"][kind])
    elif kind == 5:
        os.mkfifo(path)
    elif kind == 6:
        path.mkdir()


def changed(path: Path, content: bytes, ran: Path, rng: np.random.Generator) -> bytes:
    """Return the content changed as fits the kind of file, or byte by byte."""
    if rng.random() < 0.5:
        try:
            if path.suffix in (".json", ".yaml") and content.lstrip().startswith(b"{"):
                return changed_json(content, rng)
            if path.suffix == ".pt":
                return changed_zip(content, ran, rng)
            if path.suffix == ".pkl":
                several = bombs(ran)
                return several[rng.integers(len(several))]
            if path.suffix == ".npy":
                return changed_npy(content, rng)
            if path.suffix == ".safetensors":
                return changed_safetensors(content, rng)
        except (ValueError, IndexError, KeyError, RecursionError, struct.error, zipfile.BadZipFile, EOFError):
            pass  # an earlier change left another kind of file
    return changed_bytes(content, rng)


def changed_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes with one of eight changes that every fuzzer makes."""
    data, place, kind = bytearray(content), int(rng.integers(len(content) + 1)), rng.integers(8)
    end = min(len(data), place + int(rng.integers(1, 33)))
    if kind == 0 and place < len(data):
        data[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        data += rng.bytes(int(rng.integers(1, 200)))
    elif kind == 3:
        data[place:place] = data[:end]
    elif kind == 4:
        width = int(rng.choice([1, 2, 4, 8]))
        number = NUMBERS[rng.integers(len(NUMBERS))] % 256**width
        data[place : place + width] = number.to_bytes(width, str(rng.choice(["little", "big"])))  # pyright: ignore
    elif kind == 5:
        data[place:end] = SNIPPETS[rng.integers(len(SNIPPETS))]
    elif kind == 6:
        del data[place:end]
    else:
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
        name = str(rng.choice(["../../outside/ran", "/tmp/ran", name + "\0", "", "archive/data/0", name.upper()]))
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


def changed_npy(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a .npy with another header."""
    several = (
        "(4294967296, 4294967296)", "(-1, 5)", "()", "(0,)", "(9223372036854775807, 2)", "(2, 2, 2)", "[48]", "'x'",
        "(" * 90 + ")" * 90, "__import__('os')", "(48.0,)", "(True,)", "(1000000000,)", "(1, 96)", "(96, 1)",
    )  # fmt: skip
    types = ["'<u2'", "'|O'", "'<f4'", "'>i8'", "[('a','<u2')]", "'<M8[s]'", "'|V0'", "'U4'", "5", "'<u1'"]
    descr = types[rng.integers(len(types))]
    order, shape = str(rng.choice(["True", "False", "3"])), several[rng.integers(len(several))]
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    version, length = int(rng.integers(1, 5)), int(rng.choice([len(text), len(text), 0, 65535, 2**31]))
    size = struct.pack("<H", length % 65536) if version == 1 else struct.pack("<I", length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + content[-192:]


def changed_safetensors(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a .safetensors with another header, or another length of it."""
    (length,) = struct.unpack("<Q", content[:8])
    header = changed_json(content[8 : 8 + length], rng)
    length = int(rng.choice(np.array([len(header), len(header), len(header), 0, 2**40, 2**63 - 1, 100_000_000])))
    return struct.pack("<Q", length) + header + content[8 + len(header) :]
