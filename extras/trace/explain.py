"""Explain a training step: the windows, documents and text of its batch.

    python src explain --step 1234
    python src explain --step 0 --row 3

Steps count from 0: step N takes a run from N to N + 1 optimizer steps, as in the messages of a run that diverges. The
batch is computed from the token file and the record of the model in the workspace, or from params.yaml if no run has
finished; no log is read. `trace` finds the steps that read a text.
"""

import argparse

from extras.trace.documents import describe_documents, document_sources, quote
from extras.trace.record import read_record, recorded_windows
from lm.core.errors import ParamsError, exit_with_status
from lm.core.params import read_section
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, check_tokenizer, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train.config import TrainParams
from tools.record.arguments import tool_parser
from tools.record.paths import MODEL, PARAMS, TOKENIZER, TRAIN


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("explain", __doc__)
    add = parser.add_argument
    add("--step", type=int, required=True, help="optimizer step, from 0")
    add("--row", type=int, help="one sequence of the batch, from 0 (all)")
    return parser.parse_args(argv)


def explain_step(args: argparse.Namespace, windows: TokenWindows, tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    """Return lines on each window: position, documents, text, and the last target, which is not an input."""
    rows = range(windows.batch_size) if args.row is None else [args.row]
    starts = windows.starts(args.step)
    inputs, targets = windows.batch(args.step)
    sources = document_sources(tokens)
    lines = []
    for row in rows:
        start = int(starts[row])
        end = start + windows.seq_len
        epoch = windows.epoch_of(args.step * windows.batch_size + row)
        lines += [f"row {row}, epoch {epoch}, tokens {start:,} to {end - 1:,} of {len(tokens.ids):,}"]
        lines += [f"  {line}" for line in describe_documents(tokens, tokenizer, sources, start, end)]
        lines += quote(tokenizer.decode(inputs[row]))
        lines += [f"  last target: {tokenizer.decode(targets[row, -1:])!r}", ""]
    return lines


def check_below(option: str, value: int, end: int, meaning: str) -> None:
    """Raise ParamsError unless an option is from 0 to below `end`."""
    if not 0 <= value < end:
        raise ParamsError(f"--{option} is {value}; it must be from 0 to {end - 1}, the {end} {meaning}")


@exit_with_status
def main(argv: list[str]) -> None:
    """Print the batch of a step."""
    args = parse(argv)

    # Open the files of the run.
    tokens = open_tokens(TRAIN)
    tokenizer = load_tokenizer(TOKENIZER)
    check_tokenizer(tokens, tokenizer.sha256)
    if MODEL.exists():
        source = MODEL
        record = read_record(tokens)
        windows = recorded_windows(record, tokens)
        num_steps = record["last"]["step"]
    else:
        source = PARAMS
        params = read_section(PARAMS, "train", TrainParams)
        windows = TokenWindows(tokens.ids, params.seq_len, params.batch_size, params.seed)
        num_steps = params.max_steps
    check_below("step", args.step, num_steps, f"steps of {source}")
    if args.row is not None:
        check_below("row", args.row, windows.batch_size, "sequences of a batch")

    # Print the step, then its windows.
    batch = f"{windows.batch_size} windows of {windows.seq_len} tokens, seed {windows.seed} ({source})"
    batch_tokens = windows.batch_size * windows.seq_len
    seen_before = args.step * batch_tokens
    seen_after = seen_before + batch_tokens
    seen = f"tokens seen {seen_before:,} before it, {seen_after:,} after it"
    print(f"step {args.step} of 0 to {num_steps - 1}: {batch}; {seen}\n")
    print("\n".join(explain_step(args, windows, tokens, tokenizer)))
