"""Stage make_tokenizer: train, download or copy the vocabulary that params.yaml selects.

python src/make_tokenizer.py --raw data/raw --tokenizer data/tokenizer
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import lm.core.environment  # noqa: F401 - before transformers loads torch

from lm.core.start import start_stage

if __name__ == "__main__":
    sys.exit(start_stage(__file__))  # which imports this file

from lm.core.errors import exit_with_status
from lm.core.files import atomic_folder, output_lock
from lm.core.inputs import StageInputs
from lm.core.messages import say
from lm.core.params import read_section
from lm.core.paths import PARAMS, PRESETS, SOURCES
from lm.text.documents import open_text
from lm.text.slices import AnySlice
from lm.tokenizer.build import write_from_folder, write_from_hub, write_tiktoken, write_trained_bpe
from lm.tokenizer.config import BpeParams, HuggingFaceParams, TiktokenParams, TokenizerParams


def train_bpe(params: BpeParams, raw: Path, folder: Path) -> dict:
    """Train on the training slice of data.source and return meta.json."""
    source = read_section(PARAMS, "data.source", str)
    text_slice = read_section(SOURCES, f"sources.{source}.train", AnySlice)
    text = open_text(raw, text_slice)
    origin = text.source | {"slice": dataclasses.asdict(text_slice)}
    meta = write_trained_bpe(folder, text.batches(), params.vocab_size, text=origin)
    if meta["vocab_size"] < params.vocab_size:
        entries = f"pairs for only {meta['vocab_size']:,} entries"
        asked = f"tokenizers.*.vocab_size asks for {params.vocab_size:,}; continuing with fewer"
        print(f"warning: {PRESETS}: the training slice has {entries}, {asked}", file=sys.stderr)
    return meta


@exit_with_status
def main(argv: list[str]) -> None:
    """Write the tokenizer folder; it appears complete or not at all."""
    parser = argparse.ArgumentParser(prog="python src/make_tokenizer.py", allow_abbrev=False)
    parser.add_argument("--raw", type=Path, required=True, help="folder of the text and its manifest")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder to write")
    args = parser.parse_args(argv)
    inputs = StageInputs("make_tokenizer")

    # Read the selected preset.
    name = read_section(PARAMS, "tokenizer.name", str)
    params = read_section(PRESETS, f"tokenizers.{name}", TokenizerParams)

    say(f"making the tokenizer {name}")

    # Build the tokenizer in a temporary folder, which is renamed on success.
    with output_lock(args.tokenizer), atomic_folder(args.tokenizer) as folder:
        if isinstance(params, BpeParams):
            meta = train_bpe(params, args.raw, folder)
        elif isinstance(params, TiktokenParams):
            meta = write_tiktoken(folder, params.encoding)
        elif isinstance(params, HuggingFaceParams):
            meta = write_from_hub(folder, params.repo, params.revision)
        else:
            path = Path(read_section(PARAMS, "tokenizer.path", str))
            of_model = path / "tokenizer"
            meta = write_from_folder(folder, of_model if of_model.exists() else path)
        inputs.check_unchanged()

    say(f"{args.tokenizer}: {name}, {meta['vocab_size']:,} entries, {meta['dtype']}")
