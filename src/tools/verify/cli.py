"""Check files against dvc.lock and their records; retrain a part of the run.

    python src verify
    python src verify --retrain                             # a random part of the run and of the evaluation
    python src verify --retrain 450 --weights data/early    # and write the weights after step 450
    python src verify --processor                           # has this machine the committed bits? About a minute
    python src verify --processor short --expect 79c6aa73cfb1    # seconds; with a digest, for `git bisect run`

Every byte is read, because DVC trusts the modification times of files. Each check prints one line: `ok`, or `WRONG`
with the command that repairs it (run these commands from the top, then verify again). If all outputs are those of
dvc.lock, the records are checked against each other. Exit status 4 if anything is wrong.

Each validation of a run is a checkpoint that takes no space: plots/validation.csv has its step, its loss and the digest
of its weights and optimizers. After the checks of files, --retrain STEP trains from the nearest stored checkpoint
before that validation, or from the initial weights, and compares every validation on the way. It stores the checkpoint
in .runs, where a longer run or another --retrain begins with it, and with --weights writes its weights, as a folder
like data/models. Without a STEP, it scores random validation documents with the weights and compares their losses with
data/evaluation, then trains from one validation to the next, chosen at random among those that begin at the initial
weights or at a stored checkpoint, and stores nothing. In exact numerics the bits are the same on every device.

--processor checks no file. It trains a small fixed run, on the device of runtime.yaml, and compares its bits with the
committed ones. Exit status 4 and the first module, gradient or update of the first step that differs, or the steps
between which the weights first differ.
"""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from lm.core.errors import IntegrityError, ParamsError, exit_with_status
from lm.core.files import read_json
from lm.core.paths import RUNS
from tools.common.arguments import count, tool_parser
from tools.common.committed import changed_parameters
from tools.common.lock import Lock, changed_code, read_lock
from tools.common.paths import (
    CURVE,
    DOCUMENT_LOSSES,
    EVAL_METRICS,
    EVALUATION_DETAILS,
    MODEL,
    PARAMS,
    PIPELINE,
    TRAIN_METRICS,
)
from tools.verify.files import check_outputs
from tools.verify.records import (
    Digests,
    Finding,
    Link,
    check_link,
    links_of_finished_run,
    links_of_workspace,
)

RANDOM = -1  # the value of --retrain without a step


def check_workspace(digests: Digests) -> Iterator[Finding]:
    """Check finished runs, the outputs that DVC records and, if these are right, the records against each other."""
    lock = read_lock()
    of_outputs = list(check_outputs(lock))
    yield from check_finished_runs(digests)
    yield from of_outputs
    if not any(finding.fault for finding in of_outputs):
        yield from check_records(lock, digests)


def check_finished_runs(digests: Digests) -> Iterator[Finding]:
    """Check the files of the runs that `train` publishes instead of training again."""
    for done in sorted(RUNS.glob("*/done")):
        advice = f"run `rm -rf {done}`"
        links = links_of_finished_run(done)
        faults = [finding for link in links for finding in check_link(link, digests, advice) if finding.fault]
        yield from faults
        if not links:
            yield Finding(str(done), "has no readable list of its files", advice)
        elif not faults:
            yield Finding(f"{done}: {len(links)} files")


def check_records(lock: Lock, digests: Digests) -> Iterator[Finding]:
    """Check what the records of the workspace say of other files, and that the model is of these parameters."""
    for link in links_of_workspace():
        yield from check_link(link, digests, make_again(link.record, lock))
    yield from check_figures(lock)
    if not MODEL.exists():
        return
    model = read_json(MODEL)

    # DVC's run cache may hold files of other users: its record of these parameters may name any model.
    outputs = lock.hashes("outs")
    external = {path: md5 for path, md5 in lock.hashes("deps").items() if path not in outputs}
    if not changed_parameters(lock) and not changed_code(external, below=("",)):
        from tools.verify.retrain import fault_of_model  # torch takes seconds to import

        fault = fault_of_model(model)
        yield Finding(f"{MODEL} (from {PARAMS})", fault, "run `dvc repro -fs train`" if fault else "")
        if not fault:
            yield from check_checkpoints(RUNS / model["fingerprint"], digests)


def make_again(file: Path, lock: Lock) -> str:
    """Return advice for a file that does not fit what it was made from: run its stage again."""
    stage = next(lock.stage_of(output) for output in lock.hashes("outs") if file.is_relative_to(output))
    return f"run `dvc repro -fs {stage}`"


def check_figures(lock: Lock) -> Iterator[Finding]:
    """Check that metrics follow from the files that they are made of."""
    from tools.common import figures  # pyarrow and SciPy take a second to import

    if all(path.exists() for path in figures.FILES_OF_TRAINING):
        fault = figures.fault_of_training()
        yield Finding(f"{TRAIN_METRICS} (from {CURVE})", fault, make_again(TRAIN_METRICS, lock) if fault else "")
    if all(path.exists() for path in figures.FILES_OF_EVALUATION):
        fault = figures.fault_of_details(figures.read_losses(), {})
        yield Finding(f"{EVALUATION_DETAILS} (from {DOCUMENT_LOSSES})", fault, figures.AGAIN if fault else "")
        if fault:
            return
        fault = figures.fault_of_metrics()
        yield Finding(f"{EVAL_METRICS} (from {EVALUATION_DETAILS})", fault, figures.AGAIN if fault else "")


def check_checkpoints(run: Path, digests: Digests) -> Iterator[Finding]:
    """Check the stored checkpoints of the run, and count those that can be rebuilt because their digest is recorded."""
    from tools.common.run import DIGEST, read_curve  # DVC takes a second to import

    rebuilt = {step for step, row in read_curve(CURVE).items() if step and row.get(DIGEST)}
    for record in sorted(run.glob("checkpoint-*.json")):
        step = int(record.stem.removeprefix("checkpoint-"))
        rebuilt.discard(step)
        again = f"run `rm {record}`, and `python src verify --retrain {step}` to rebuild it"
        yield from check_link(Link(record, "sha256", record.with_suffix(".pt")), digests, again)
    if rebuilt:
        yield Finding(f"{CURVE}: {len(rebuilt)} more checkpoints, which `python src verify --retrain STEP` rebuilds")


def show(finding: Finding) -> None:
    """Print a finding on a line."""
    result = "WRONG" if finding.fault else "ok"
    clauses = "; ".join(filter(None, (finding.fault, finding.advice)))
    print(f"{result:5}  {finding.subject}" + (f": {clauses}" if clauses else ""), flush=True)


@exit_with_status
def main(argv: list[str]) -> None:
    """Check the workspace."""
    parser = tool_parser("verify", __doc__)
    parser.add_argument(
        "--retrain",
        type=count,
        nargs="?",
        const=RANDOM,
        metavar="STEP",
        help="also train again up to this validation, compare its digest, and store its checkpoint (a random interval)",
    )
    parser.add_argument(
        "--from", type=count, dest="start", metavar="STEP", help="retrain from this checkpoint, or from 0 (the nearest)"
    )
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="new folder for the weights of --retrain STEP")
    parser.add_argument("--seed", type=int, help="choose documents and interval by this seed (a new one each time)")
    parser.add_argument(
        "--processor",
        choices=["short", "minute"],
        nargs="?",
        const="minute",
        help="train a small fixed run",
    )
    parser.add_argument("--expect", type=digest_prefix, help="compare its last weights with this digest, not the file")
    parser.add_argument("--record", nargs="?", const="", metavar="HOW", help="list this processor, and how it was run")
    parser.add_argument("--write", action="store_true", help="commit its digests, after a change of the arithmetic")
    args = parser.parse_args(argv)
    check_arguments(args)
    if args.processor:
        from tools.verify.processor import check_processor  # torch takes seconds to import

        print(check_processor(args.processor, args.expect, args.record, args.write))
        return
    if not PIPELINE.exists():
        raise ParamsError(f"{PIPELINE}: missing; run the command at the repository's root")
    findings = 0
    wrong = 0
    for finding in check_workspace(Digests()):
        findings += 1
        wrong += finding.fault is not None
        show(finding)
    print(f"{findings} checks, {f'{wrong} wrong' if wrong else 'all ok'}", flush=True)
    if args.retrain is not None:
        # torch takes seconds to import.
        from tools.verify.rescore import rescore
        from tools.verify.retrain import retrain

        step = None if args.retrain == RANDOM else args.retrain
        seed = random.randrange(10**6) if args.seed is None else args.seed
        if step is None and args.start is None:
            rescore(seed)
        retrain(step, args.start, seed, args.weights)
    if wrong:
        raise IntegrityError(f"{wrong} wrong; run the commands above from the top, then verify again")


def digest_prefix(text: str) -> str:
    """Parse the first 6 to 12 hex digits of a digest."""
    if not re.fullmatch("[0-9a-f]{6,12}", text.lower()):
        raise argparse.ArgumentTypeError(f"is {text}; it must be 6 to 12 hex digits")
    return text.lower()


def check_arguments(args: argparse.Namespace) -> None:
    """Raise ParamsError if options contradict each other."""
    of_processor = {"--expect": args.expect, "--record": args.record, "--write": args.write or None}
    given = [name for name, value in of_processor.items() if value is not None]
    if given and not args.processor:
        raise ParamsError(f"{' and '.join(given)} belong to --processor; add it")
    if len(given) > 1:
        raise ParamsError(f"{' and '.join(given)} cannot be given together")
    if args.processor and args.retrain is not None:
        raise ParamsError("--processor trains a fixed run, --retrain that of the workspace; give one of them")
    of_retrain = {"--from": args.start, "--seed": args.seed, "--weights": args.weights}
    given = [name for name, value in of_retrain.items() if value is not None]
    if given and args.retrain is None:
        raise ParamsError(f"{' and '.join(given)} say how --retrain trains; add --retrain")
    if args.weights and args.retrain == RANDOM:
        raise ParamsError("--weights writes the weights of one step; name it: --retrain STEP")
    if args.weights and args.weights.exists():
        raise ParamsError(f"{args.weights}: exists; name a new folder")
    if args.seed is not None and (args.start is not None or args.retrain != RANDOM):
        raise ParamsError("--seed chooses a random part; leave it out with --from or --retrain STEP")
