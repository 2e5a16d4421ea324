"""Train a small run, and compare its bits with the committed ones: `python src prove`.

    python src prove                 # about a minute: 100 steps of a model of four layers
    python src prove --run short     # seconds: 20 steps of a smaller one
    python src prove --record        # also add this processor to the committed list of those that were seen
    python src prove --run short --expect 79c6aa73cfb1    # compare with a digest, for `git bisect run`

Exact numerics promise the same bits on every processor and every NVIDIA GPU, for any number of threads; `device` in
runtime.yaml chooses where the run computes. If the bits differ, the exit status is 4, and the message names the first
module, gradient or update of the first step that differs, or the steps between which the weights first differ.
"""

import argparse
import re
from pathlib import Path

import torch

from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import read_json, write_json
from lm.exact.threads import ThreadTuner, set_num_threads
from lm.model.machine import device_name, read_device
from tools.common.arguments import tool_parser
from tools.common.environment import processor
from tools.common.paths import GOLDEN
from tools.prove.digests import check_expected, first_difference, last_weights
from tools.prove.golden_run import RUNS, train


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments; a wrong one ends the program with status 2."""
    parser = tool_parser("prove", __doc__)
    parser.add_argument("--run", choices=sorted(RUNS), default="minute", help="which run (minute)")
    parser.add_argument("--threads", type=int, help="number of threads (the cores that other processes leave free)")
    parser.add_argument("--golden", type=Path, default=GOLDEN, help=f"file of digests ({GOLDEN})")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--expect", type=digest_prefix, help="compare the last weights with this digest, not the file")
    action.add_argument("--record", nargs="?", const="", metavar="HOW", help="add this processor, and how it was run")
    action.add_argument("--write", action="store_true", help="write the digests, after a change of the arithmetic")
    return parser.parse_args(argv)


def digest_prefix(text: str) -> str:
    """Parse the first 6 to 12 hex digits of a digest."""
    if not re.fullmatch("[0-9a-f]{6,12}", text.lower()):
        raise argparse.ArgumentTypeError(f"is {text}; it must be 6 to 12 hex digits")
    return text.lower()


@exit_with_status
def main(argv: list[str]) -> None:
    """Train a run of RUNS and compare its digests with the committed ones, or write them.

    Raise IntegrityError if they differ.
    """
    args = parse(argv)
    if args.threads is not None and args.threads < 1:
        raise ParamsError(f"--threads is {args.threads}; it must be at least 1")
    if args.threads:
        set_num_threads(args.threads, "fast")  # the tuner takes torch's number
    threads = ThreadTuner("exact", adapts=args.threads is None and args.record is None)  # a record names the threads
    device = read_device()
    found = train(args.run, threads, device)
    hardware = processor() if device.type == "cpu" else device_name(device)
    if args.expect:
        check_expected(found, args.expect)
        return
    path = args.golden
    golden: dict = read_json(path) if path.exists() else {"seen_on": []}
    if args.write:
        write_json(path, golden | {args.run: found, "torch": torch.__version__.split("+")[0]})
        print(f"{path} has the digests of this machine")
        return
    if args.run not in golden:
        raise IntegrityError(
            f"{path} lacks the digests of the run {args.run}; to add them, run `python src prove --write`"
        )
    last = last_weights(found)
    if problem := first_difference(found, golden[args.run]):
        raise IntegrityError(f"{path}: on this {hardware} {problem}")
    if args.record is not None:
        seen_on = add_processor(golden["seen_on"], hardware, args.run, last, args.record, threads.threads)
        write_json(path, golden | {"seen_on": seen_on})
    number = "1 thread" if threads.threads == 1 else f"{threads.threads} threads"
    print(f"same bits as committed: {args.run} run, weights {last}, {hardware}, {number}")


def add_processor(seen: list[dict], hardware: str, run: str, digest: str, how: str, num_threads: int) -> list[dict]:
    """Return the list of processors and GPUs with this one, once for each run and way to run it."""
    entry = {
        "processor": hardware,
        "how": how or "natively",
        "run": run,
        "weights": digest,
        "threads": num_threads,
    }
    same = ("processor", "how", "run", "threads")
    return [other for other in seen if any(other[key] != entry[key] for key in same)] + [entry]
