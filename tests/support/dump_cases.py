"""Folders of dumps as the original script writes them."""

import json
import pickle

from extras.formats.dumps import META

T = 4  # seq_len of most tests


def write_foreign(folder, *dumps):
    """Write dumps and meta file as the original script does: padding counts as tokens."""
    folder.mkdir(exist_ok=True)
    meta = {}
    for number, samples in enumerate(dumps):
        name = f"dump-{number}.pkl"
        (folder / name).write_bytes(pickle.dumps(samples))
        num_tokens = sum(len(sample) for sample in samples)
        meta[name] = {"num_samples": len(samples), "num_tokens": num_tokens}
    (folder / META).write_text(json.dumps(meta))
    return folder
