"""A small run of own text with a test split, for the tests of what reads the split and of what must not."""

import contextlib
from pathlib import Path

from support.stages import TINY, change_params, run_stages, stage_folder, write_texts

TEST_DOCUMENTS = 8
SPLIT = "sources.local.fetch.split"


def make_run(folder: Path, **params) -> Path:
    """Run all stages in `folder` on 80 documents, 8 of them for test; `params` are changed first, by dotted name."""
    stage_folder(folder)
    change_params(folder, TINY | {f"{SPLIT}.test_documents": TEST_DOCUMENTS} | params)
    write_texts(folder / "data/local/own.jsonl")
    with contextlib.chdir(folder):
        run_stages()
    return folder
