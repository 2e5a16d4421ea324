"""Damage files and records of a finished pipeline, and read what `python src verify` says about it."""

import contextlib
import hashlib
import os
import re
from pathlib import Path

import torch

from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
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


DAMAGES = {
    "a flipped bit": flip,
    "truncated": truncate,
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


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
