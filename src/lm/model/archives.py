"""Check that a file is one that torch.save writes, before torch reads it."""

import pickletools
import re
import zipfile
from pathlib import Path

# What the pickles of tensors, numbers, strings, lists and dicts name. torch.load(weights_only=True) allows more, among
# it bytearray, with which a few bytes claim any amount of memory.
ALLOWED = {"collections OrderedDict", "torch._utils _rebuild_tensor_v2"}
MAX_REPEATED_TUPLES = 20  # tuples that hold others twice, 60 deep, take 2^60 steps where they are the key of a dict


def check_archive(path: Path) -> None:
    """Raise ValueError or BadZipFile unless a file is a zip that holds a pickle of tensors and plain values.

    Its content is not longer than the file, so that the memory of torch.load follows from that length.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise ValueError("it is compressed")
        check_pickle(archive.read(next(entry for entry in entries if entry.filename.endswith("/data.pkl"))))


def check_pickle(content: bytes) -> None:
    """Raise ValueError if a pickle names anything else than a tensor, or repeats tuples too often."""
    previous, tuples, repeated = "", set(), 0
    for opcode, value, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL" and value not in ALLOWED and not re.fullmatch(r"torch \w+Storage", str(value)):
            raise ValueError(f"it asks for {value}")
        if "PUT" in opcode.name and "TUPLE" in previous:
            tuples.add(value)
        repeated += "GET" in opcode.name and value in tuples
        previous = opcode.name
    if repeated > MAX_REPEATED_TUPLES:
        raise ValueError(f"it repeats {repeated} tuples, needed: at most {MAX_REPEATED_TUPLES}")
