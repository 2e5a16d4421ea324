"""Trace a text to the training data: the spans that it contains, and the steps that read them.

    python src trace "a text of the model"
    python src trace --sample 1               # of data/evaluation/samples.md
    python src generate | python src trace -

Spans are runs of tokens, as long as possible. The longest come first; spans inside a listed one are left out. Places
that the model has read come first. A text that is cut inside a word may begin and end with other tokens than its
source. The whole token file is searched, without an index. `explain` shows what a step read.
"""

import argparse
import sys

import numpy as np

from extras.trace.documents import describe_documents, document_sources, quote
from extras.trace.record import read_record, recorded_windows
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import check_types, read_json
from lm.evaluate.copies import Copy, find_copies, text_pieces
from lm.tokenizer.load import Tokenizer, load_tokenizer
from lm.tokens.tokenfile import TokenFile, check_tokenizer, open_tokens
from lm.tokens.windows import TokenWindows
from tools.record.arguments import count, tool_parser
from tools.record.paths import EVALUATION_DETAILS, MODEL, SAMPLES, TOKENIZER, TRAIN

MOST_PLACES = 100_000  # of a span: the others are only counted


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("trace", __doc__)
    add = parser.add_argument
    add("text", nargs="?", help="the text; -: standard input")
    add("--sample", type=count, help="number of a sample in data/evaluation/samples.md, from 1, instead of a text")
    add("--min_tokens", type=count, default=4, help="tokens of the shortest span (4)")
    add("--spans", type=count, default=5, help="spans to list at most (5)")
    add("--places", type=count, default=3, help="places of a span, and epochs of a place, to list at most (3)")
    add("--steps", type=count, help="optimizer steps of the model (those of the best weights)")
    args = parser.parse_args(argv)
    if (args.text is None) == (args.sample is None):
        parser.error("give either a text or --sample")
    return args


def sample_ids(number: int, weights_sha256: str) -> list[int]:
    """Return the ids of a sample; raise IntegrityError if another model wrote it, ParamsError if there is none."""
    if not weights_sha256.startswith(read_json(EVALUATION_DETAILS).get("weights_sha256", "none")):
        raise IntegrityError(f"{EVALUATION_DETAILS}: evaluates other weights than {MODEL} records; run `dvc repro`")
    described = read_json(SAMPLES)
    check_types(SAMPLES, described, {"samples": [{"ids": [int]}]}, "run `dvc repro -f eval`")
    if not described["samples"]:
        raise ParamsError(f"{SAMPLES}: has no samples; give the source prompts in sources.yaml, or name a text")
    if not 1 <= number <= len(described["samples"]):
        raise ParamsError(f"--sample is {number}; it must be from 1 to {len(described['samples'])}, as in {SAMPLES}")
    return described["samples"][number - 1]["ids"]


def choose(copies: list[Copy], ids: np.ndarray, min_tokens: int, tokenizer: Tokenizer) -> list[tuple[Copy, str]]:
    """Return copies of a text of ids (N,), the longest first, each with its text.

    Each has at least min_tokens tokens outside the longer ones, and its text is not in theirs.
    """
    chosen = []
    is_listed = np.zeros(len(ids), bool)
    for copy in sorted(copies, key=lambda copy: (-copy.length, copy.count)):
        span = slice(copy.begin, copy.end)
        num_new = np.count_nonzero(~is_listed[span])
        if num_new < min_tokens:
            continue
        is_listed[span] = True
        text = tokenizer.decode(ids[span])
        if not any(text in longer for _, longer in chosen):
            chosen.append((copy, text))
    return chosen


def places_read(copy: Copy, starts: np.ndarray, seq_len: int) -> tuple[list[int], int]:
    """Return the positions of a copy, those that were read first, and the number of those.

    A place was read if a window, which begins at one of the sorted `starts`, has two tokens of it: a single token
    teaches nothing about another.
    """
    places = np.array(copy.positions)
    first_window = np.searchsorted(starts, places + 1 - seq_len)
    last_window = np.searchsorted(starts, places + copy.length - 1)
    is_read = first_window < last_window
    read = places[is_read].tolist()
    others = places[~is_read].tolist()
    return read + others, len(read)


def describe_readings(windows: TokenWindows, begin: int, end: int, steps: int, most: int) -> list[str]:
    """Return a line on each epoch, at most `most`, in which the first steps read tokens begin … end - 1."""
    lines = []
    for epoch, places, num_windows in windows.readings(begin, end, steps):
        if not places:
            continue
        if len(places) < num_windows:
            how = f"in part, {len(places)} of {num_windows} windows"
        elif num_windows == 1:
            how = "whole"
        else:
            how = f"across {num_windows} windows"
        where = ", ".join(f"step {step} row {row}" for step, row in places)
        lines.append(f"read {how}: {where} (epoch {epoch})")
    if not lines:
        return [f"not read in the first {steps:,} steps"]
    if len(lines) > most:
        return [*lines[:most], f"and in {len(lines) - most} more epochs"]
    return lines


def trace(
    ids: np.ndarray, tokens: TokenFile, tokenizer: Tokenizer, windows: TokenWindows, args: argparse.Namespace
) -> list[str]:
    """Return lines on a text of ids (N,): the text with its new parts marked, then its spans and where they are."""
    (copies,) = find_copies([ids], tokens.ids, args.min_tokens, MOST_PLACES)

    # The text, with what is new between brackets.
    is_new = np.ones(len(ids), bool)
    for copy in copies:
        is_new[copy.begin : copy.end] = False
    unseen = f"in no span of {args.min_tokens} tokens that {tokens.path} contains"
    lines = [f"{len(ids)} tokens; {np.count_nonzero(is_new)} of them, between ⟦ and ⟧, are new: {unseen}"]
    pieces = text_pieces(ids, copies, tokenizer)
    lines += quote("".join(text if length else f"⟦{text}⟧" for text, length in pieces))

    # The spans, each with its places, those that the steps have read first.
    sources = document_sources(tokens)
    starts = np.sort(np.concatenate([windows.starts(step) for step in range(args.steps)]))
    chosen = choose(copies, ids, args.min_tokens, tokenizer)
    for number, (copy, text) in enumerate(chosen[: args.spans], 1):
        places, num_read = places_read(copy, starts, windows.seq_len)
        times = describe_times(copy, len(places), num_read, args.steps)
        lines += ["", f"{number}. {copy.length} tokens, {times}", *quote(text)]
        for begin in places[: args.places]:
            end = begin + copy.length
            documents = describe_documents(tokens, tokenizer, sources, begin, end)
            readings = describe_readings(windows, begin, end, args.steps, args.places)
            lines += [f"  {line}" for line in documents]
            lines += [f"    {line}" for line in readings]
        num_more = copy.count - args.places
        if num_more > 0:
            lines.append(f"  and {num_more:,} more place{'s' if num_more > 1 else ''}")
    return lines


def describe_times(copy: Copy, num_places: int, num_read: int, steps: int) -> str:
    """Return how often a copy is in the training text, and how many of the known places the steps have read."""
    if copy.count == 1:
        return "once in the training text"
    them = f"the first {MOST_PLACES:,}" if copy.count > num_places else "them"
    read = f"{num_read:,} of {them} read in the first {steps:,} steps"
    return f"{copy.count:,} times in the training text, {read}"


def check_range(option: str, value: int, least: int, most: int) -> None:
    """Raise ParamsError unless an option is from `least` to `most`."""
    if not least <= value <= most:
        raise ParamsError(f"--{option} is {value}; it must be from {least} to {most}")


@exit_with_status
def main(argv: list[str]) -> None:
    """Print the spans of a text that the training data contains."""
    args = parse(argv)

    # Open the files of the run, which must belong together.
    tokens = open_tokens(TRAIN)
    record = read_record(tokens)
    tokenizer = load_tokenizer(TOKENIZER)
    check_tokenizer(tokens, tokenizer.sha256)

    # Complete and check the arguments.
    last = record["last"]
    best_step = record["best"]["step"]
    if args.steps is None and best_step == 0:
        found = "the best weights are those before the first step, which have read nothing"
        raise ParamsError(f"{MODEL}: {found}; give --steps, from 1 to {last['step']}")
    if args.steps is None:
        args.steps = best_step
    check_range("min_tokens", args.min_tokens, 2, record["seq_len"])
    check_range("steps", args.steps, 1, last["step"])

    # Read the text.
    if args.sample is not None:
        ids = sample_ids(args.sample, record["best"]["sha256"])
    elif args.text == "-":
        ids = tokenizer.encode(sys.stdin.read().removesuffix("\n"))
    else:
        ids = tokenizer.encode(args.text)
    if len(ids) < args.min_tokens:
        raise ParamsError(f"the text has {len(ids)} tokens; it must have at least --min_tokens, {args.min_tokens}")

    # Trace it through the batches of the run.
    windows = recorded_windows(record, tokens)
    print("\n".join(trace(np.array(ids), tokens, tokenizer, windows, args)))
    if record["init_sha256"]:
        print("\nThe run began with the weights of another model; its training text was not searched.")
