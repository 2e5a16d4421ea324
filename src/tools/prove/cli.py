"""Train a small run and compare its bits with the committed ones: `python src prove`.

    python src prove                 # about a minute: 100 steps of a model of four layers
    python src prove --run short     # seconds: 20 steps of a smaller one
    python src prove --record        # also add this processor to the committed list of those that were seen

Exact numerics promise the same bits on every processor, for any number of threads. If the bits differ, the exit
status is 4, and the message names the first operation of the first step that differs, or the steps between which the
weights first differ.
"""

from pathlib import Path

import torch
from tqdm import tqdm

from lm.core.errors import IntegrityError, exit_with_status
from lm.core.files import read_json, write_json
from lm.model.threads import ThreadTuner
from tools.common.arguments import tool_parser
from tools.common.environment import processor
from tools.common.paths import GOLDEN
from tools.prove.golden_run import RUNS, train


@exit_with_status
def main(argv: list[str]) -> None:
    """Train the run and compare or write its digests; raise IntegrityError if they differ from the committed ones."""
    parser = tool_parser("prove", __doc__)
    parser.add_argument("--run", choices=sorted(RUNS), default="minute", help="which run (minute)")
    parser.add_argument("--threads", type=int, help="number of threads (the cores that other processes leave free)")
    parser.add_argument("--golden", type=Path, default=GOLDEN, help=f"committed digests ({GOLDEN})")
    parser.add_argument("--record", nargs="?", const="", metavar="HOW", help="add this processor, and how it was run")
    parser.add_argument("--write", action="store_true", help="write the digests, after a change of the arithmetic")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    cores = ThreadTuner("exact", adapts=args.threads is None and args.record is None)  # a record names the threads
    with tqdm(total=RUNS[args.run][1], unit="step", desc=args.run, disable=None, leave=False) as bar:

        def after_a_step(steps: int) -> None:
            """Advance the bar, and adapt the number of threads to the free cores."""
            bar.update(steps)
            cores.adapt()

        found = train(args.run, after_a_step)
    golden: dict = read_json(args.golden) if args.golden.exists() else {"seen_on": []}
    if args.write:
        write_json(args.golden, golden | {args.run: found, "torch": torch.__version__.split("+")[0]})
        return print(f"{args.golden} has the digests of this machine")
    if args.run not in golden:
        raise IntegrityError(
            f"{args.golden} lacks the digests of the run {args.run}; to add them, run `python src prove --write`"
        )
    last = list(found["weights"].values())[-1]
    if problem := first_difference(found, golden[args.run]):
        raise IntegrityError(f"{args.golden}: on this {processor()} {problem}")
    if args.record is not None:
        seen_on = add_processor(golden["seen_on"], args.run, last, args.record, cores.threads)
        write_json(args.golden, golden | {"seen_on": seen_on})
    threads = "1 thread" if cores.threads == 1 else f"{cores.threads} threads"
    print(f"same bits as committed: {args.run} run, weights {last}, {processor()}, {threads}")


def first_difference(found: dict, golden: dict) -> str | None:
    """Return what differs first from the committed digests, or None."""
    for operation, digest in golden["first step"].items():
        if found["first step"].get(operation) != digest:
            return f"the first step differs in: {operation}"
    steps, before = list(golden["weights"]), "1"
    for step in steps:
        if found["weights"].get(step) != golden["weights"][step]:
            return f"the first step has the committed bits, the weights first differ between steps {before} and {step}"
        before = step
    return None


def add_processor(seen: list[dict], run: str, digest: str, how: str, num_threads: int) -> list[dict]:
    """Return the list of processors with this one, once for each run and way to run it."""
    sets = [name for name, there in sorted(torch.cpu.get_capabilities().items()) if there is True]
    entry = {
        "processor": processor(),
        "how": how or "natively",
        "instruction_sets": sets,
        "run": run,
        "weights": digest,
        "threads": num_threads,
    }
    same = ("processor", "how", "run", "threads")
    return [other for other in seen if any(other[key] != entry[key] for key in same)] + [entry]
