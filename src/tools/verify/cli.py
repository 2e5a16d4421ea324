"""Is the run in the workspace what it says? Check its files, and compare it with the last commit; `make` ends with it.

    python src verify
    python src verify --json
    python src verify --retrain                             # does this code make these weights and losses?
    python src verify --retrain 450 --weights data/early    # write the weights after step 450
    python src verify --processor                           # does this machine give the committed bits? A minute
    python src verify --processor short --expect 79c6aa73cfb1    # seconds; with a digest, for `git bisect run`

It compares every byte of the outputs with dvc.lock, then records and metrics with each other. At the first error it
ends with exit status 4 and the command that repairs it. Then it compares the run with the last commit, and says whether
all outputs are identical, or what differs. The exit status is 0 even if the run differs from the committed one.

--retrain also scores random validation documents again. It trains the whole run again if that takes ten minutes or less
here, otherwise a random part from one validation to the next. It compares each validation on the way with
plots/validation.csv and, at the steps of the best and the last weights, the tensors with those in data/models. At the
end it says what this has shown, and what it has not. With STEP it trains to that validation, from the nearest stored
checkpoint before it. It stores the checkpoint of that step in .runs, where a longer run or another --retrain can begin
with it.

--processor checks no file. It trains a small fixed run on the device of runtime.yaml, and compares its weights with the
committed digests. If they differ, it names the steps between which they first do, and exits with status 4.
"""

import argparse
import random
import re
from pathlib import Path

from evidence.record import print_json
from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from tools.record.arguments import count, tool_parser
from tools.record.committed import changes_from_commit, stale
from tools.record.lock import read_lock
from tools.record.paths import LOCK, PIPELINE
from tools.verify.answer import describe, next_commands, next_lines, record
from tools.verify.files import check_outputs
from tools.verify.records import check_records

SCHEMA = "reprolm.verify/1"
NO_STEP = -1  # the value of --retrain without a step


@exit_with_status
def main(argv: list[str]) -> None:
    """Answer as the arguments say. Raise IntegrityError with the first error and the command that repairs it."""
    args = parse(argv)
    if args.processor:
        from tools.verify.processor import check_processor  # torch takes seconds to import

        print(check_processor(args.processor, args.expect, args.record, args.write))
        return
    if not PIPELINE.exists():
        raise ParamsError(f"{PIPELINE}: missing; run the command at the repository's root")
    try:
        verify(args)
    except IntegrityError as error:
        if args.json:
            print_json(SCHEMA, {"fault": str(error)})
        raise


def verify(args: argparse.Namespace) -> None:
    """Check the workspace and print the answer."""

    def say(line: str) -> None:
        """Print a line, unless a program reads the answer."""
        if not args.json:
            print(line, flush=True)

    # The files, to the first error.
    lock = read_lock()
    num_outputs = check_outputs(lock)
    say(f"ok  {num_outputs} outputs have the bytes of {LOCK}")
    num_hashes = check_records(lock)
    say(f"ok  {num_hashes} hashes in records are those of their files; metrics follow from losses and curves")

    # The last commit, and what changed since the run.
    changes = changes_from_commit()
    changed = stale(lock)
    for line in describe(changes, changed):
        say(line)

    # The computation.
    shown = []
    if args.retrain is not None:
        # torch takes seconds to import.
        from tools.verify.rescore import rescore
        from tools.verify.retrain import retrain

        seed = random.randrange(10**6) if args.seed is None else args.seed
        step = None if args.retrain == NO_STEP else args.retrain
        if step is None:
            shown += rescore(seed)
        shown += retrain(step, seed, args.weights)
        for line in shown:
            say(line)

    if args.json:
        print_json(SCHEMA, record(changes, changed) | {"shown": shown})
    else:
        print("\n".join(next_lines(next_commands(changes, changed))))


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the arguments. Raise ParamsError for an option without the option that it belongs to."""
    parser = tool_parser("verify", __doc__)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md) and nothing else")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--retrain", type=count, nargs="?", const=NO_STEP, metavar="STEP", help="compute the run again")
    again.add_argument("--processor", choices=["short", "minute"], nargs="?", const="minute", help="a small fixed run")

    of_retrain = parser.add_argument_group("with --retrain")
    of_retrain.add_argument(
        "--weights", type=Path, metavar="FOLDER", help="new folder for the weights of its last step"
    )
    of_retrain.add_argument("--seed", type=int, help="choose documents and steps by this seed (a new one each time)")

    of_processor = parser.add_argument_group("with --processor").add_mutually_exclusive_group()
    of_processor.add_argument("--expect", type=digest_prefix, help="a digest of the weights, in place of the file")
    of_processor.add_argument(
        "--record", nargs="?", const="", metavar="HOW", help="list this processor, and how it ran"
    )
    of_processor.add_argument(
        "--write", action="store_true", help="write its digests, after a change of the arithmetic"
    )

    args = parser.parse_args(argv)
    if args.retrain is None and (args.weights or args.seed is not None):
        raise ParamsError("--weights and --seed belong to --retrain; add it")
    if args.processor is None and (args.expect or args.record is not None or args.write):
        raise ParamsError("--expect, --record and --write belong to --processor; add it")
    if args.weights and args.weights.exists():
        raise ParamsError(f"{args.weights}: exists; name a new folder")
    return args


def digest_prefix(text: str) -> str:
    """Parse the first 6 to 12 hex digits of a digest."""
    if not re.fullmatch("[0-9a-f]{6,12}", text.lower()):
        raise argparse.ArgumentTypeError(f"is {text}; it must be 6 to 12 hex digits")
    return text.lower()
