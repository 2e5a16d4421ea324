"""A prompt → the text that a trained model puts behind it, printed while it is drawn.

python src generate "Once upon a time" --temperature 0.8 --seed 1 --num_samples 3
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from lm.core.errors import ParamsError, command
from lm.evaluate.generation import generate
from lm.model import device as machine
from lm.model.gemma3 import Gemma3Model
from lm.model.weights import check_trained_with, load_trained
from lm.tokenizer.load import Tokenizer, load_tokenizer, well_formed

UNFINISHED = "\ufffd"  # what a character decodes to while bytes of it are missing


def whole(text: str) -> int:
    """A count or a seed on the command line."""
    if not 0 <= (number := int(text)) < 2**62:
        raise argparse.ArgumentTypeError(f"is {text}, needed: a whole number from 0 on")
    return number


def finite(text: str) -> float:
    """A number on the command line."""
    if not math.isfinite(number := float(text)):
        raise argparse.ArgumentTypeError(f"is {text}, needed: a finite number")
    return number


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser("python src generate", description="Continue a text, as it is drawn.")
    parser.add_argument("prompt", nargs="?", default="", help="the text to continue; none begins a document")
    parser.add_argument("--models", type=Path, default="data/models")
    parser.add_argument("--tokenizer", type=Path, default="data/tokenizer")
    parser.add_argument("--temperature", type=finite, default=0.8, help="0 takes the likeliest token (0.8)")
    parser.add_argument("--top_k", type=whole, default=50, help="draw from the k likeliest; 0: from all (50)")
    parser.add_argument("--top_p", type=finite, help="draw from the fewest that reach this probability")
    parser.add_argument("--min_p", type=finite, help="drop what is less than min_p times the likeliest")
    parser.add_argument("--seed", type=whole, default=1, help="of the first sample, then one more each (1)")
    parser.add_argument("--num_samples", type=whole, default=1)
    parser.add_argument("--max_new_tokens", type=whole, default=256)
    parser.add_argument("--no_cache", action="store_true", help="compute the whole text anew for each token")
    return parser.parse_args(argv)


def stream_text(tokenizer: Tokenizer, prompt_ids: list[int], ids: Iterable[int]) -> Iterator[str]:
    """Yield the text that ids put behind a prompt's, each character as soon as it is whole.

    Tokens of one character can be several, and what a token stands for can depend on the one before
    it; so the tokens that were last shown are decoded again with the new ones.
    """
    shown, waiting = prompt_ids, []
    for token_id in ids:
        waiting.append(token_id)
        text = added_text(tokenizer, shown, waiting)
        if text and not text.endswith(UNFINISHED):
            yield text
            shown, waiting = waiting, []
    if waiting:
        yield added_text(tokenizer, shown, waiting)


def added_text(tokenizer: Tokenizer, shown: list[int], waiting: list[int]) -> str:
    """What `waiting` adds to the text of `shown`."""
    before, after = tokenizer.decode(shown), tokenizer.decode(shown + waiting)
    if after.startswith(before):
        return after[len(before) :]
    return tokenizer.decode(waiting)  # bytes that are no UTF-8 took valid ones before them along


def room_for(prompt_ids: list[int], model: Gemma3Model) -> int:
    """Tokens that fit behind a prompt; ParamsError if there is no room."""
    limit = model.config.max_seq_len
    if len(prompt_ids) >= limit:
        raise ParamsError(f"the prompt has {len(prompt_ids)} tokens, needed: below max_seq_len ({limit})")
    return limit - len(prompt_ids)


def draw_ids(model: Gemma3Model, prompt_ids: list[int], num_tokens: int, seed: int, eot_id: int, args) -> Iterator[int]:
    """Stream ids with the settings of the command line; ParamsError if one is out of range."""
    try:
        return generate(
            model,
            prompt_ids,
            num_tokens,
            generator=torch.Generator(model.device).manual_seed(seed),
            temperature=args.temperature,
            top_k=args.top_k or None,
            top_p=args.top_p,
            min_p=args.min_p,
            eot_id=eot_id,
            use_cache=not args.no_cache,
        )
    except ValueError as error:
        raise ParamsError(f"--{error}") from None


def show(text: str) -> None:
    """Put a piece of text on the screen now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_sample(model: Gemma3Model, tokenizer: Tokenizer, seed: int, args) -> None:
    """Print the prompt and, token by token, what follows; a summary goes to stderr."""
    prompt_ids = [tokenizer.eot_id, *tokenizer.encode(args.prompt)]
    room, eot_id = room_for(prompt_ids, model), tokenizer.eot_id
    ids = draw_ids(model, prompt_ids, min(args.max_new_tokens, room), seed, eot_id, args)
    ids, drawn = itertools.tee(ids)
    start = time.perf_counter()
    show(well_formed(args.prompt))
    for text in stream_text(tokenizer, prompt_ids, itertools.takewhile(lambda i: i != eot_id, ids)):
        show(text)
    show("\n")
    seconds, drawn = time.perf_counter() - start, list(drawn)
    cut = "max_new_tokens" if args.max_new_tokens <= room else "the model's max_seq_len"
    end = "ended by itself" if drawn[-1:] == [eot_id] else f"cut at {cut}"
    rate = len(drawn) / seconds
    print(f"seed {seed}: {len(drawn)} tokens, {rate:.0f} a second, {end}", file=sys.stderr, flush=True)


@command
def main(argv: list[str]) -> None:
    """Print --num_samples continuations of a prompt, one after the other."""
    args = parse(argv)
    tokenizer = load_tokenizer(args.tokenizer)
    model, record = load_trained(args.models, machine.pick_device())
    check_trained_with(tokenizer.sha256, tokenizer.folder, args.models, record)
    sys.stdout.reconfigure(errors="replace")  # for a terminal that knows few characters
    for number in range(args.num_samples):
        print_sample(model, tokenizer, args.seed + number, args)
