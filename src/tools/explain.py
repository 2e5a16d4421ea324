"""What a step of training reads: the windows, documents and text of its batch, from seed and step alone.

    python src explain --step 1234
    python src explain --step 0 --row 3 --chars 200

Steps count from 0, as in the messages of a run that diverges: step N is the one that takes the run
from N to N + 1 optimizer steps. The run is the one that params.yaml describes, on the token files in
the workspace; no log and no model is read.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from lm.core.errors import ParamsError, command
from lm.core.params import read_section
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, check_tokenizer, document_spans, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from tools.common.excerpt import beginning

PARAMS = "params.yaml"


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        prog="python src explain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("--step", type=int, required=True, help="optimizer step, from 0 on")
    add("--row", type=int, help="one sequence of the batch, from 0 on (all)")
    add("--chars", type=int, help="characters of each window's text to show (all)")
    add("--train", type=Path, default="data/processed_datasets/train.bin")
    add("--tokenizer", type=Path, default="data/tokenizer")
    return parser.parse_args(argv)


def needed_range(option: str, value: int, end: int, what: str) -> None:
    """Raise ParamsError unless 0 <= value < end."""
    if not 0 <= value < end:
        raise ParamsError(f"--{option} is {value}, needed: from 0 to {end - 1}, {what}")


def epoch_of(windows: TokenWindows, step: int, row: int) -> int:
    """The pass over the text that a sequence of a batch belongs to."""
    sequence, epoch = step * windows.batch_size + row, 0
    while sequence >= (count := windows.windows_per_epoch(epoch)):
        sequence, epoch = sequence - count, epoch + 1
    return epoch


def documents_in(tokens: TokenFile, tokenizer: Tokenizer, spans: np.ndarray, start: int, end: int) -> list[str]:
    """A line for each document that the inputs start … end - 1 touch; spans (D, 2)."""
    lines = []
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    for document in range(first, len(spans)):
        begin, behind = map(int, spans[document])
        if begin >= end:
            break
        lines.append(
            f"  document {document}, its tokens {max(start, begin) - begin:,} to {min(end, behind) - begin - 1:,} of "
            f"{behind - begin:,}: {beginning(tokens, tokenizer, spans[document])}"
        )
    return lines


def shortened(text: str, num_chars: int | None) -> str:
    """The first characters of a text, and how many more there are."""
    if num_chars is None or len(text) <= num_chars:
        return text
    return f"{text[:num_chars]}… ({len(text) - num_chars:,} characters more)"


def explain_step(args: argparse.Namespace, windows: TokenWindows, tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    """Lines about each window: where it lies, its documents, its text, and the token that only its last target is."""
    rows = range(windows.batch_size) if args.row is None else [args.row]
    starts, (inputs, targets), spans = windows.starts(args.step), windows.batch(args.step), document_spans(tokens)
    lines = []
    for row in rows:
        start, end = int(starts[row]), int(starts[row]) + windows.seq_len
        where = f"tokens {start:,} to {end - 1:,} of {len(tokens.ids):,}"
        lines += [f"row {row}, epoch {epoch_of(windows, args.step, row)}, {where}"]
        lines += documents_in(tokens, tokenizer, spans, start, end)
        lines += [f"  | {line}" for line in shortened(tokenizer.decode(inputs[row]), args.chars).split("\n")]
        lines += [f"  last target: {tokenizer.decode(targets[row, -1:])!r}", ""]
    return lines


@command
def main(argv: list[str]) -> None:
    """Print the batch of a step."""
    args = parse(argv)
    params = read_section(PARAMS, "train", TrainParams)
    needed_range("step", args.step, params.max_steps, f"the {params.max_steps} steps of train.max_tokens")
    if args.row is not None:
        needed_range("row", args.row, params.batch_size, f"the {params.batch_size} sequences of a batch")
    if args.chars is not None and args.chars < 1:
        raise ParamsError(f"--chars is {args.chars}, needed: at least 1")
    tokens, tokenizer = open_tokens(args.train), load_tokenizer(args.tokenizer)
    check_tokenizer(tokens, tokenizer.sha256)
    windows = TokenWindows(tokens.ids, params.seq_len, params.batch_size, params.seed)
    sys.stdout.reconfigure(errors="replace")  # for a terminal that knows few characters
    seen = args.step * params.batch_tokens
    print(
        f"step {args.step} of 0 to {params.max_steps - 1}: {params.batch_size} windows of {params.seq_len} tokens, "
        f"seed {params.seed}; tokens seen {seen:,} before it, {seen + params.batch_tokens:,} after it\n"
    )
    print("\n".join(explain_step(args, windows, tokens, tokenizer)))
