"""Folders of dumps as the original script writes them."""

import json
import pickle

from extras.formats.dumps import META

T = 4  # seq_len of most tests


def write_foreign(folder, *dumps):
    """Write dumps and meta file as the original script does: padding counts as tokens."""
    folder.mkdir(exist_ok=True)
    meta = {}
    for i, samples in enumerate(dumps):
        (folder / f"dump-{i}.pkl").write_bytes(pickle.dumps(samples))
        meta[f"dump-{i}.pkl"] = {"num_samples": len(samples), "num_tokens": sum(map(len, samples))}
    (folder / META).write_text(json.dumps(meta))
    return folder
