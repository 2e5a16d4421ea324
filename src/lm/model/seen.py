"""seen_documents.pt, beside a model: hashes of the documents that it was trained on, and of those of its start.

A run that starts from a model of another split may validate on documents that the start was trained on. A document is
identified by all of its token ids, so a near-copy, or a document that a slice has cut, is a different one.
"""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lm.core.files import read_json
from lm.model.initial import RECORD
from lm.model.weights import load_tensors, save_tensors
from lm.tokens.tokenfile import TokenFile

SEEN = "seen_documents.pt"
NONE = torch.zeros(0, dtype=torch.int64)  # of a run without a start


def hash_documents(tokens: TokenFile) -> Tensor:
    """Return a hash of the ids of each document, (D,) int64."""
    digests = (hashlib.blake2b(tokens.ids[start:end].data, digest_size=8).digest() for start, end in tokens.spans)
    hashes = (int.from_bytes(digest, "little", signed=True) for digest in digests)
    return torch.from_numpy(np.fromiter(hashes, np.int64, len(tokens.spans)))


def save_seen(folder: Path, train: TokenFile, by_start: Tensor | None) -> str | None:
    """Write the hashes and return the SHA-256 of the file; nothing, and None, if those of the start are unknown."""
    if by_start is None:
        return None
    return save_tensors(folder / SEEN, {"by_start": by_start, "by_model": hash_documents(train)})


def load_seen(folder: Path, record: dict) -> dict[str, Tensor] | None:
    """Return the hashes beside a model.json, None if they are unknown: those of a model that was trained elsewhere."""
    sha256 = record.get("seen_sha256")
    if sha256 is None or not (folder / SEEN).exists():
        return None
    return load_tensors(folder / SEEN, sha256)


def seen_with_start(folder: Path) -> Tensor | None:
    """Return the hashes (n,) of all documents that a model and its start were trained on, None if they are unknown."""
    seen = load_seen(folder, read_json(folder / RECORD))
    return None if seen is None else torch.cat([seen["by_start"], seen["by_model"]])


def seen_by_start(folder: Path, record: dict, tokens: TokenFile) -> np.ndarray | None:
    """Return which documents of a token file the start of a model was trained on, (D,) bool; None if it is unknown."""
    seen = load_seen(folder, record)
    return None if seen is None else torch.isin(hash_documents(tokens), seen["by_start"]).numpy()


def copy_seen(source: Path, target: Path) -> None:
    """Copy the hashes of a folder, if it has them, to one with the same model.json."""
    if (source / SEEN).exists():
        shutil.copyfile(source / SEEN, target / SEEN)
