"""Folders of dumps as written here and by the original script."""

import json
import pickle

import numpy as np

from extras.formats.dumps import META, replace_dumps, write_dumps

T = 4  # seq_len of most tests


def write_foreign(folder, *dumps, num_tokens=None):
    """Write dumps and meta file as the original script does: padding counts as tokens."""
    folder.mkdir(exist_ok=True)
    meta = {}
    for i, samples in enumerate(dumps):
        (folder / f"dump-{i}.pkl").write_bytes(pickle.dumps(samples))
        meta[f"dump-{i}.pkl"] = {"num_samples": len(samples), "num_tokens": sum(map(len, samples))}
    (folder / META).write_text(json.dumps(meta))
    return folder


def write_own(folder, ids, max_dump_size=2, **options):
    chunks = np.array_split(np.array(ids, np.uint16), 3)
    with replace_dumps(folder) as temporary:
        return write_dumps(
            temporary, chunks, "uint16", dict, seq_len=T, max_dump_size=max_dump_size, pad_token=9, **options
        )
