"""A small project for the tokenizing stages: text, parameters, and the stages as functions of a folder.

The vocabulary of BYTES gives each text its UTF-8 bytes as ids, so that the expected token file can be
read off the text.
"""

import shlex
from pathlib import Path

import audit
import tokenize_split
from lm.core.files import read_json
from lm.tokenizer.build import write_byte_level
from support.mixture_cases import write_source
from support.stages import change_params, stage_folder

BYTES = {bytes([byte]): byte for byte in range(256)}
AUDIT = shlex.split(
    "--raw raw --tokenizer tokenizer --train out/train.bin --validation out/validation.bin"
    " --audit audit --metrics metrics"
)
ALL = {"split": "text", "start_char": 0, "num_chars": None}


def make_project() -> None:
    """Write parameters and tokenizer/, the vocabulary of BYTES, into the working directory."""
    stage_folder(Path())
    write_params()
    change_params(Path(), {"tokenize.num_processes": 1}, "runtime.yaml")
    Path("tokenizer").mkdir()
    write_byte_level(Path("tokenizer"), BYTES, "bpe")


def write_raw(texts) -> None:
    """Write data/raw as fetch leaves it, with one split `text`."""
    write_source(Path("raw"), "mine", text=texts)


def write_params(train=ALL, validation=ALL) -> None:
    """Select the source `mine`, with these slices."""
    source = {"fetch": None, "train": train, "validation": validation, "prompts": [""]}
    change_params(Path(), {"data.source": "mine", "sources.mine": source})


def arguments(split="train", folder="tokenizer") -> list[str]:
    return ["--split", split, "--raw", "raw", "--tokenizer", str(folder), "--tokens", f"out/{split}.bin"]


def tokenize(split="train", folder="tokenizer") -> int:
    return tokenize_split.main(arguments(split, folder))


def run_audit() -> dict:
    """Return the data card of both splits; the flags of duplicates are in audit/duplicates.parquet."""
    assert audit.main(AUDIT) == 0
    return read_json("audit/details.json")
