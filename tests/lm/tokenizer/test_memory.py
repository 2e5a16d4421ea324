"""Tokenizing uses memory for its chunks, not for the corpus."""

import subprocess
import sys

import pytest

from lm.core.files import write_json
from lm.text.parquet import describe_split, write_documents
from support.memory import MEASURE
from support.selections import make_selection
from support.workspace import Workspace


def peak_mib(workspace, copies):
    """Peak memory of the largest process of tokenize_train on `copies` times 1 MB of different text, in MiB."""
    raw = workspace.folder / "data" / "raw"
    texts = (f"document {i} of many: {i * 7919} {i * 104729} and so on. " * 20 for i in range(copies * 1000))
    write_documents(raw / "train" / "0000.parquet", texts)
    split = describe_split(raw, "train", "text")
    write_json(raw / "manifest.json", {"source": "stories", "column": "text", "splits": {"train": split}})
    out = workspace.folder / "data" / "processed_datasets" / "train.bin"
    make_selection(raw.with_name("selection"), raw)
    folders = ["--raw", "data/raw", "--selection", "data/selection", "--tokenizer", "data/tokenizer"]
    stage = ["src/tokenize_split.py", "--split", "train", *folders, "--tokens", out]
    measured = workspace.run(sys.executable, "-c", MEASURE, sys.executable, *map(str, stage)).stdout
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return int(measured) / unit


@pytest.mark.slow
def test_ten_times_the_text_takes_the_same_memory(tmp_path):
    workspace = Workspace(tmp_path)
    workspace.make_small()
    definition, raw = ["--definition", "data/source.json"], ["--raw", "data/raw"]
    select = ["src/select_documents.py", *raw, "--selection", "data/selection"]
    make_tokenizer = ["src/make_tokenizer.py", *select[1:], "--tokenizer", "data/tokenizer"]
    for stage in (["src/resolve.py", *definition], ["src/fetch.py", *definition, *raw], select, make_tokenizer):
        subprocess.run([sys.executable, *stage], cwd=tmp_path, env=workspace.environment, check=True)
    small, large = (peak_mib(workspace, copies) for copies in (20, 200))
    assert large < 400
    assert large < 1.3 * small + 20, (small, large)
