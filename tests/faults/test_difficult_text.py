"""Text that breaks tokenizers: it is encoded whole, and its special strings are ordinary text."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lm.tokenizer.load import load_tokenizer
from lm.tokens.tokenfile import document_spans, open_tokens
from support import ROOT
from support.tokenize_cases import (
    arguments,
    make_project,
    tokenize,
    write_raw,
)
from support.tokenizer_cases import SPECIAL, write_bpe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory: parameters and the vocabulary of bytes in tokenizer/; each test writes its texts."""
    monkeypatch.chdir(tmp_path)
    make_project()


def decoded(trained: Path) -> list[str]:
    """Return the documents of out/train.bin as text; one separator follows each."""
    tokenizer = load_tokenizer(trained)
    tokens = open_tokens(Path("out/train.bin"))
    texts = []
    for begin, end in document_spans(tokens):
        ids = tokens.ids[begin : end - 1]
        texts.append(tokenizer.decode(ids.tolist()))
    return texts


# On the first two, tiktoken's own loop panics.
LONG = ["é" * 1_000_000, " " * 1_000_000 + "x"]
NAMED = [*SPECIAL, *[f"x{name}{name} y" for name in SPECIAL], "".join(SPECIAL)]


def test_documents_are_encoded_whole_and_their_special_strings_are_ordinary_text(folder, tmp_path_factory):
    texts = [*LONG, "a\0b", *NAMED]
    write_raw(texts)
    tokenizer = write_bpe(tmp_path_factory.mktemp("bpe"))

    assert tokenize(folder=tokenizer) == 0

    tokens = open_tokens(Path("out/train.bin"))
    assert decoded(tokenizer) == texts
    assert tokens.meta["documents"] == len(texts)
    assert np.count_nonzero(tokens.ids == tokens.eot_id) == len(texts)


# A program that runs a command in a new process and prints its peak memory.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}
STAGE = "import sys, tokenize_split; sys.exit(tokenize_split.main(sys.argv[1:]))"


@pytest.mark.slow
def test_a_document_of_50_mb_takes_at_most_a_gibibyte_per_process(folder):
    """A Hugging Face tokenizer takes 0.1 to 0.2 GB for each MB of one document."""
    texts = ["int main(void) { return 0; } // the quick brown fox, é\n" * 910_000, "short"]
    write_raw(texts)
    command = [sys.executable, "-c", MEASURE, sys.executable, "-c", STAGE, *arguments()]

    measured = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True).stdout

    units_of_a_gibibyte = 1 << 30 if sys.platform == "darwin" else 1 << 20  # macOS counts bytes, Linux KiB
    assert int(measured) < units_of_a_gibibyte
    assert decoded(Path("tokenizer")) == texts
