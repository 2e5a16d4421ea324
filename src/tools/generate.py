"""Generate text: continue a prompt with the trained model, printed token by token.

python src generate "Once upon a time" --temperature 0.8 --seed 1 --num_samples 3
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from lm.core.errors import ParamsError, exit_with_status
from lm.evaluate.generation import generate
from lm.model import machine
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import check_trained_with, load_trained
from lm.tokenizer.load import Tokenizer, load_tokenizer, well_formed
from tools.record.arguments import count, finite, tool_parser
from tools.record.lock import warn_of_changed_code
from tools.record.paths import MODELS, TOKENIZER

UNFINISHED = "\ufffd"  # decoded in place of a character whose bytes are incomplete


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("generate", __doc__)
    add = parser.add_argument
    add("prompt", nargs="?", default="", help="the text to continue; without it, a new document")
    add("--models", type=Path, default=MODELS, help=f"folder of the model ({MODELS})")
    add("--tokenizer", type=Path, default=TOKENIZER, help=f"tokenizer folder ({TOKENIZER})")
    add("--temperature", type=finite, default=0.8, help="0: always the likeliest token (0.8)")
    add("--top_k", type=count, default=50, help="sample from the k likeliest tokens; 0: from all (50)")
    add("--top_p", type=finite, help="sample from the fewest tokens that reach this probability")
    add("--min_p", type=finite, help="drop tokens below min_p times the highest probability")
    add("--seed", type=count, default=1, help="seed of the first sample; each next one adds 1 (1)")
    add("--num_samples", type=count, default=1, help="number of continuations (1)")
    add("--max_new_tokens", type=count, default=256, help="tokens to generate at most (256)")
    return parser.parse_args(argv)


def stream_text(tokenizer: Tokenizer, prompt_ids: list[int], ids: Iterable[int]) -> Iterator[str]:
    """Yield the text of the ids that follow a prompt; a character of several tokens is yielded with its last token."""
    # The text of a token can depend on the one before it, so those that were shown last are decoded again.
    shown = prompt_ids
    waiting = []
    for token_id in ids:
        waiting.append(token_id)
        text = added_text(tokenizer, shown, waiting)
        if text and not text.endswith(UNFINISHED):
            yield text
            shown = waiting
            waiting = []
    if waiting:
        yield added_text(tokenizer, shown, waiting)


def added_text(tokenizer: Tokenizer, shown: list[int], waiting: list[int]) -> str:
    """Return the text that `waiting` adds to that of `shown`."""
    before = tokenizer.decode(shown)
    after = tokenizer.decode(shown + waiting)
    if after.startswith(before):
        return after[len(before) :]
    return tokenizer.decode(waiting)  # invalid UTF-8 changed how the bytes before it decode


def sample_ids(model: Gemma3Model, prompt_ids: list[int], seed: int, eot_id: int, args) -> Iterator[int]:
    """Return an iterator over generated ids, as many as fit; ParamsError if an option is out of range."""
    limit = model.config.max_seq_len
    if len(prompt_ids) >= limit:
        raise ParamsError(f"the prompt has {len(prompt_ids)} tokens; it must have fewer than max_seq_len ({limit})")
    num_tokens = min(args.max_new_tokens, limit - len(prompt_ids))
    try:
        return generate(
            model,
            prompt_ids,
            num_tokens,
            temperature=args.temperature,
            top_k=args.top_k or None,
            top_p=args.top_p,
            min_p=args.min_p,
            eot_id=eot_id,
            generator=torch.Generator().manual_seed(seed),
        )
    except ValueError as error:
        raise ParamsError(f"--{error}") from None


def print_sample(model: Gemma3Model, tokenizer: Tokenizer, seed: int, args) -> None:
    """Print the prompt and its continuation token by token, then a summary on stderr."""
    eot_id = tokenizer.eot_id
    prompt_ids = [eot_id, *tokenizer.encode(args.prompt)]
    sampled = sample_ids(model, prompt_ids, seed, eot_id, args)
    ids = []  # all sampled ids, including the end of the text

    def ids_of_text() -> Iterator[int]:
        for token_id in sampled:
            ids.append(token_id)
            if token_id != eot_id:
                yield token_id

    # The text, while it is drawn.
    start = time.perf_counter()
    print(well_formed(args.prompt), end="", flush=True)
    for piece in stream_text(tokenizer, prompt_ids, ids_of_text()):
        print(piece, end="", flush=True)
    print(flush=True)
    seconds = time.perf_counter() - start

    # The summary.
    if ids[-1:] == [eot_id]:
        end = "ended by itself"
    elif len(ids) == args.max_new_tokens:
        end = "cut at max_new_tokens"
    else:
        end = "cut at the model's max_seq_len"
    rate = len(ids) / seconds
    print(f"seed {seed}: {len(ids)} tokens, {rate:.0f} a second, {end}", file=sys.stderr, flush=True)


@exit_with_status
def main(argv: list[str]) -> None:
    """Print --num_samples continuations of a prompt, one after the other."""
    args = parse(argv)
    tokenizer = load_tokenizer(args.tokenizer)
    model, record = load_trained(args.models, machine.read_device())
    check_trained_with(tokenizer.sha256, tokenizer.folder, args.models, record)
    warn_of_changed_code(args.models)
    for number in range(args.num_samples):
        print_sample(model, tokenizer, args.seed + number, args)
