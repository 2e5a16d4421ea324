"""Damage files, and read what `python src verify` says about it. A damage is a function of a path."""

import contextlib
import hashlib
import os
import re
from pathlib import Path

import numpy as np
import torch

from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.tokens.tokenfile import write_tokens
from lm.train import checkpoints
from lm.train.state import digest_of, named_tensors


@contextlib.contextmanager
def writable(path):
    """Open a file for a change that keeps its modification time, as a failing disk would."""
    before = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        yield file
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.chmod(path, before.st_mode & 0o777)


def flip(path):
    """Flip one bit in the middle of a file."""
    with writable(path) as file:
        middle = os.path.getsize(path) // 2
        file.seek(middle)
        byte = file.read(1)[0]
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


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


def replaced_by(content):
    """Return the damage that writes these bytes instead."""
    return lambda path: path.write_bytes(content)


def with_values(**values):
    """Return the damage that sets keys of a JSON file; None removes a key."""

    def damage(path):
        changed = read_json(path) | values
        write_json(path, {key: value for key, value in changed.items() if value is not None})

    return damage


def with_ids(change):
    """Return the damage that writes a token file and its sidecar again, with changed ids and the right hash."""

    def damage(path):
        meta, ids = read_json(path.with_suffix(".json")), np.fromfile(path, np.uint16)
        kept = {key: meta[key] for key in ("documents", "utf8_bytes", "tokenizer")}
        write_tokens(path, [np.array(change(ids), np.uint16)], "uint16", lambda: kept)

    return damage


def edit(path, change):
    """Replace a JSON file by a changed one; the cache keeps the old one."""
    value = read_json(path)
    change(value)
    write_json(path, value)


def wrong(lines):
    """Return the lines of faults."""
    return [line for line in lines if line.startswith("WRONG")]


def command(line):
    """Return the command that a line says to run."""
    return re.search(r"run `([^`]*)`", line)[1]


def object_of(path):
    """Return the object of DVC's cache that holds a file's bytes."""
    md5 = hashlib.md5(Path(path).read_bytes()).hexdigest()
    return f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"


def recording(path):
    """Return the output that a file is or lies in, its stage, and whether it is cached, from dvc.yaml."""
    for stage, entry in read_yaml("dvc.yaml")["stages"].items():
        for out in [*entry.get("outs", []), *entry.get("metrics", []), *entry.get("plots", [])]:
            name = out if isinstance(out, str) else next(iter(out))
            if path == name or path.startswith(name + "/"):
                return name, stage, isinstance(out, str)
    raise AssertionError(path)


def flip_in_checkpoint(checkpoint, name, position):
    """Change the last bit of a number of a checkpoint, and record the new file's hash; return its digest."""
    state = checkpoints.load_checkpoint(checkpoint)
    tensors = dict(named_tensors(state))
    tensors[name].view(-1).view(torch.int32)[position] ^= 1
    others = [other.step for other in checkpoints.list_checkpoints(checkpoint.run)]
    checkpoints.save_checkpoint(checkpoint.run, checkpoint.step, state, others)
    return digest_of(tensors.items())
