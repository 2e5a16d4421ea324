"""Damage files. A damage is a function of a path."""

import os

import numpy as np

from lm.core.files import read_json, write_json
from lm.tokens.tokenfile import write_tokens


def flipped(content: bytes) -> bytes:
    """Return a content with one bit flipped in the middle."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def flip(path):
    """Flip one bit in the middle of a file, and keep its modification time, as a failing disk would."""
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(flipped(path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(before.st_mode)


def truncate(path):
    """Leave the first half of a file."""
    os.truncate(path, os.path.getsize(path) // 2)


def extend(path):
    """Add a byte at the end of a file."""
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path):
    """Leave a file without bytes."""
    path.write_bytes(b"")


def remove(path):
    """Remove a file."""
    path.unlink()


DAMAGES = (flip, truncate, extend, empty, remove)


def with_values(**values):
    """Return the damage that sets keys of a JSON file; None removes a key."""

    def damage(path):
        changed = read_json(path) | values
        write_json(path, {key: value for key, value in changed.items() if value is not None})

    return damage


def with_ids(change):
    """Return the damage that writes a token file and its sidecar again, with changed ids and the right hash."""

    def damage(path):
        meta = read_json(path.with_suffix(".json"))
        ids = np.fromfile(path, np.uint16)
        kept = {key: meta[key] for key in ("documents", "utf8_bytes", "tokenizer")}
        write_tokens(path, [np.array(change(ids), np.uint16)], "uint16", lambda: kept)

    return damage
