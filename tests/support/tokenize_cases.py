"""A small project for the tokenizing stages: text, parameters, and the stages as functions of a folder.

The vocabulary of BYTES gives each text its UTF-8 bytes as ids, so that the expected token file can be
read off the text.
"""

import os
from pathlib import Path

import numpy as np

import audit
import make_tokenizer
import tokenize_split
from lm.core.files import read_json, write_json
from lm.core.params import read_yaml
from lm.tokenizer.build import write_byte_level
from support import ROOT
from support.mixture_cases import write_source
from support.refusal import files_below

BYTES = {bytes([byte]): byte for byte in range(256)}
PRESETS = read_yaml(ROOT / "presets.yaml")
NONE = PRESETS["selections"]["none"]
END = 256  # the end-of-text id of the vocabulary of BYTES
TEXT = ["--raw", "raw"]
AUDIT = [
    *TEXT,
    *("--tokenizer", "tokenizer"),
    *("--train", "out/train.bin"),
    *("--validation", "out/validation.bin"),
    *("--audit", "audit"),
    *("--metrics", "metrics"),
]
ALL = {"split": "text", "start_char": 0, "num_chars": None}
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}
STAGE = "import sys, tokenize_split; sys.exit(tokenize_split.main(sys.argv[1:]))"


def make_project() -> None:
    """Write parameters and tokenizer/, the vocabulary of BYTES, into the working directory."""
    write_params()
    write_runtime()
    Path("tokenizer").mkdir()
    write_byte_level(Path("tokenizer"), BYTES, "bpe")


def write_raw(texts) -> None:
    """Write data/raw as fetch leaves it, with one split `text`."""
    write_source(Path("raw"), "mine", text=texts)


def write_params(train=ALL, validation=ALL, tokenizer=None, fetch=None) -> None:
    """Write the shipped parameters with one source `mine` and one tokenizer `t`."""
    selected = {
        "data": {"source": "mine"},
        "tokenizer": {"name": "t"},
        "local": {"path": "texts"},
        "selection": {"name": "none"},
    }
    write_json("params.yaml", read_yaml(ROOT / "params.yaml") | selected)

    source = {"fetch": fetch, "train": train, "validation": validation, "prompts": [""]}
    write_json("sources.yaml", {"sources": {"mine": source}})

    tokenizer = tokenizer or {"kind": "bpe", "vocab_size": 300, "pretokenizer": "gpt2"}
    presets = {"selections": {"none": NONE}, "tokenizers": {"t": tokenizer}}
    write_json("presets.yaml", PRESETS | presets)
    if not Path("runtime.yaml").exists():
        write_runtime()


FETCH = ["--raw", "raw"]
LOCAL = {"kind": "local", "include": "**/*", "column": "text", "encoding": "utf-8", "separator": None, "split": None}


def write_runtime() -> None:
    write_json("runtime.yaml", read_yaml(ROOT / "runtime.yaml") | {"tokenize": {"num_processes": 1}})


def arguments(split="train", folder="tokenizer", tokens=None) -> list[str]:
    tokens = tokens or f"out/{split}.bin"
    return ["--split", split, *TEXT, "--tokenizer", str(folder), "--tokens", str(tokens)]


def tokenize(split="train", folder="tokenizer") -> int:
    return tokenize_split.main(arguments(split, folder))


def build_tokenizer(folder="out") -> int:
    return make_tokenizer.main([*TEXT, "--tokenizer", folder])


def run_audit() -> dict:
    """Return the data card of both splits; the flags of duplicates are in audit/duplicates.parquet."""
    assert audit.main(AUDIT) == 0
    return read_json("audit/details.json")


def outputs() -> list[str]:
    return sorted(files_below(Path("out")))


def expected_ids(texts) -> np.ndarray:
    ids = []
    for text in texts:
        ids += [*text.encode("utf-8"), END]
    return np.array(ids, dtype="<u2")
