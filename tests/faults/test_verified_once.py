"""A stage reads each large file that it needs once to check its SHA-256, and no other file."""

import builtins
import io
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from support.stages import run_here

TRAIN_TEXT = "data/raw/train.parquet"
VALIDATION_TEXT = "data/raw/validation.parquet"
TOKENIZER = [
    "data/tokenizer/meta.json",
    "data/tokenizer/ranks.tiktoken",
    "data/tokenizer/tokenizer.json",
    "data/tokenizer/tokenizer_config.json",
]
TOKENS = ["data/processed_datasets/train.bin", "data/processed_datasets/validation.bin"]
TEXT_AND_TOKENS = [TRAIN_TEXT, VALIDATION_TEXT, *TOKENIZER, *TOKENS]

CHECKED = {
    "make_tokenizer": [TRAIN_TEXT],
    "tokenize_train": [TRAIN_TEXT, *TOKENIZER],
    "tokenize_val": [VALIDATION_TEXT, *TOKENIZER],
    "audit": TEXT_AND_TOKENS,
    "train": TOKENS,
    "eval": [*TOKENS, *TOKENIZER],
    "plot": [],
}


@pytest.fixture
def bytes_read(monkeypatch) -> Counter[str]:
    """Count the bytes that are read of each file that Python opens; Arrow and torch open files themselves."""
    counts = Counter()
    open_file = builtins.open

    class CountedFile(io.BufferedReader):
        def read(self, size=-1):
            content = super().read(size)
            counts[self.path] += len(content)
            return content

        def readinto(self, buffer):
            num_bytes = super().readinto(buffer)
            counts[self.path] += num_bytes
            return num_bytes

    def open_counted(path, mode="r", *arguments, **options):
        if mode != "rb":
            return open_file(path, mode, *arguments, **options)
        file = CountedFile(io.FileIO(path))
        file.path = os.path.relpath(path)
        return file

    monkeypatch.setattr(builtins, "open", open_counted)
    return counts


@pytest.mark.parametrize("stage", CHECKED)
def test_a_stage_checks_each_file_once(project, bytes_read, stage):
    shutil.rmtree(".runs")  # a finished run needs no tokens
    sizes = {name: Path(name).stat().st_size for name in TEXT_AND_TOKENS}

    assert run_here(stage) == 0

    found = {name: bytes_read[name] for name in sizes if bytes_read[name] > 0}
    assert found == {name: sizes[name] for name in CHECKED[stage]}
