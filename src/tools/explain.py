"""Explain a training step: the windows, documents and text of its batch.

    python src explain --step 1234
    python src explain --step 0 --row 3 --chars 200

Steps count from 0: step N takes a run from N to N + 1 optimizer steps, as in the messages of a run that
diverges. The batch follows from params.yaml (train.seed) and the token files in the workspace; no log and no
model is read.
"""

import argparse
import sys
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from lm.core.errors import ParamsError, command
from lm.core.params import read_section
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, check_tokenizer, document_spans, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from tools.common.arguments import tool_parser
from tools.common.paths import PARAMS, TOKENIZER, TRAIN
from tools.common.preview import previews


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("explain", __doc__)
    add = parser.add_argument
    add("--step", type=int, required=True, help="optimizer step, from 0")
    add("--row", type=int, help="one sequence of the batch, from 0 (all)")
    add("--chars", type=int, help="characters to show of each window's text (all)")
    add("--train", type=Path, default=TRAIN, help=f"token file ({TRAIN})")
    add("--tokenizer", type=Path, default=TOKENIZER, help=f"tokenizer folder ({TOKENIZER})")
    return parser.parse_args(argv)


def explain_step(args: argparse.Namespace, windows: TokenWindows, tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    """Return lines on each window: position, documents, text, and the last target, which is not an input."""
    rows = range(windows.batch_size) if args.row is None else [args.row]
    starts, (inputs, targets), spans = windows.starts(args.step), windows.batch(args.step), document_spans(tokens)
    lines = []
    for row in rows:
        start, end = int(starts[row]), int(starts[row]) + windows.seq_len
        sequence, epoch = args.step * windows.batch_size + row, 0
        while sequence >= (count := windows.windows_per_epoch(epoch)):
            sequence, epoch = sequence - count, epoch + 1
        lines += [f"row {row}, epoch {epoch}, tokens {start:,} to {end - 1:,} of {len(tokens.ids):,}"]
        first, last = np.searchsorted(spans[:, 1], start, side="right"), np.searchsorted(spans[:, 0], end)
        lines += [
            f"  document {document}, its tokens {max(start, begin) - begin:,} to {min(end, stop) - begin - 1:,} of "
            f"{stop - begin:,}: {previews(tokens, tokenizer, spans[document : document + 1])[0]}"
            for document, (begin, stop) in enumerate(spans[first:last].tolist(), int(first))
        ]
        text = tokenizer.decode(inputs[row])
        if args.chars is not None and len(text) > args.chars:
            text = f"{text[: args.chars]}… ({len(text) - args.chars:,} characters more)"
        lines += [f"  | {line}" for line in text.split("\n")]
        lines += [f"  last target: {tokenizer.decode(targets[row, -1:])!r}", ""]
    return lines


@command
def main(argv: list[str]) -> None:
    """Print the batch of a step."""
    args = parse(argv)
    params = read_section(PARAMS, "train", TrainParams)
    for option, value, end, what in (
        ("step", args.step, params.max_steps, "steps of train.max_tokens"),
        ("row", args.row or 0, params.batch_size, "sequences of a batch"),
    ):
        if not 0 <= value < end:
            raise ParamsError(f"--{option} is {value}, needed: from 0 to {end - 1}, the {end} {what}")
    if args.chars is not None and args.chars < 1:
        raise ParamsError(f"--chars is {args.chars}, needed: at least 1")
    tokens, tokenizer = open_tokens(args.train), load_tokenizer(args.tokenizer)
    check_tokenizer(tokens, tokenizer.sha256)
    windows = TokenWindows(tokens.ids, params.seq_len, params.batch_size, params.seed)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that cannot show every character
    seen = args.step * params.batch_tokens
    print(
        f"step {args.step} of 0 to {params.max_steps - 1}: {params.batch_size} windows of {params.seq_len} tokens, "
        f"seed {params.seed}; tokens seen {seen:,} before it, {seen + params.batch_tokens:,} after it\n"
    )
    print("\n".join(explain_step(args, windows, tokens, tokenizer)))
