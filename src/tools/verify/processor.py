"""Train a small run, and compare its bits with the committed ones: this processor, or this GPU, against all others."""

import torch

from lm.core.errors import IntegrityError
from lm.core.files import read_json, write_json
from lm.exact.threads import ThreadTuner
from lm.model.machine import device_name, read_device
from tools.record.environment import processor
from tools.record.paths import GOLDEN
from tools.verify.golden_run import train


def check_processor(run: str, expect: str | None, record: str | None, writes: bool) -> str:
    """Train a run of RUNS and return a sentence that confirms the committed bits.

    Raise IntegrityError with the steps between which the bits first differ.

    Args:
        expect: the beginning of a digest, with which the last weights are compared in place of the file.
        record: how this processor ran, to add it to the committed list; "" for natively, None to add nothing.
        writes: write the digests of this machine, after a change of the arithmetic.
    """
    threads = ThreadTuner("exact", adapts=record is None)  # a record names the number of threads
    device = read_device()
    found = train(run, threads, device)
    last = list(found.values())[-1]
    if expect:
        if not last.startswith(expect):
            raise IntegrityError(f"the last weights have the digest {last}; --expect is {expect}")
        return f"same bits as expected: weights {last}"

    golden: dict = read_json(GOLDEN) if GOLDEN.exists() else {"seen_on": []}
    if writes:
        write_json(GOLDEN, golden | {run: found, "torch": torch.__version__.split("+")[0]})
        return f"{GOLDEN} has the digests of this machine"
    if run not in golden:
        remedy = f"run `python src verify --processor {run} --write`"
        raise IntegrityError(f"{GOLDEN} lacks the digests of the run {run}; to add them, {remedy}")

    hardware = processor() if device.type == "cpu" else device_name(device)
    if problem := first_difference(found, golden[run]):
        raise IntegrityError(f"{GOLDEN}: on this {hardware} {problem}")
    if record is not None:
        seen_on = add_processor(golden["seen_on"], hardware, run, last, record, threads.threads)
        write_json(GOLDEN, golden | {"seen_on": seen_on})
    number = "1 thread" if threads.threads == 1 else f"{threads.threads} threads"
    return f"same bits as committed: {run} run, weights {last}, {hardware}, {number}"


def first_difference(found: dict[str, str], golden: dict[str, str]) -> str | None:
    """Return a sentence with the steps between which the weights first differ from the committed ones, or None."""
    before = "0"
    for step, digest in golden.items():
        if found.get(step) != digest:
            return f"the weights first differ between steps {before} and {step}"
        before = step
    return None


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
