"""Let one call of a stage fail, each in turn: open, write, fsync, rename and mmap, with several errors.

    PYTHONPATH=src:tests python benchmarks/torture/failing_calls.py [--sample]

The stage must end with the right outputs, or with one sentence and a code of the catalogue, never with a traceback; it
leaves no temporary file, and the outputs of the run before; and the same stage, run again, ends with the right outputs.
Nobody may notice a call that is interrupted (EINTR) or that writes only half. --sample tries one stage. The exit status
is 1 if anything is lost.
"""

import errno
import sys
import time
from collections import Counter
from collections.abc import Iterator

import lm.core.environment  # noqa: F401 - before NumPy

import shim
from disk import temporary_part
from small_stages import STAGES, Case, Tree, below, copy_of, is_lock, make_cases, read_tree, record, recover, run

ERRORS = {
    "open": [errno.EMFILE, errno.EIO, errno.EINTR, errno.ENOSPC],
    "write": [errno.ENOSPC, errno.EIO, errno.EINTR, shim.SHORT],
    "fsync": [errno.EIO, errno.ENOSPC, errno.EINTR],
    "rename": [errno.ENOSPC, errno.EIO],
    "mmap": [errno.ENOMEM, errno.EIO],
}
INVISIBLE = (errno.EINTR, shim.SHORT)
ERRORS_IN_TURN = ("audit", "train", "eval", "plot")  # slow stages, of which each call fails once


def faults_of(case: Case) -> Iterator[shim.Fault]:
    """Yield the faults to try: every call that an undisturbed run makes."""
    with copy_of(case.before) as folder:
        ended = run(case.work, folder)
    assert ended.code == 0, ended.err
    for kind, count in ended.calls.items():
        for at in range(1, count + 1):
            errors = ERRORS[kind]
            if case.name in ERRORS_IN_TURN:
                errors = [errors[at % len(errors)]]
            for error in errors:
                yield shim.Fault(kind, at, error)


def problem_after(case: Case, fault: shim.Fault, recovered: set, figures: Counter) -> str | None:
    """Return what is wrong after a fault, or None; count how the stage ended."""
    with copy_of(case.before) as folder:
        ended = run(case.work, folder, fault=fault)
        tree = read_tree(folder)
        if not ended.is_clean:
            return f"ended with {ended.code}: {ended.err}"
        if ended.code == 0:
            figures["unnoticed"] += 1
            return None if below(tree, case.outputs) == case.right else "a wrong result, and no error"
        figures["refused"] += 1
        if fault.error in INVISIBLE:
            return f"ended with {ended.code}: {ended.err}"
        if left := [name for name in tree if temporary_part(name) and name not in case.before]:
            return f"left {left}"
        if gone := [name for name in case.outputs if name in case.before and name not in tree]:
            return f"removed {gone}"
        # Runs end alike from the same files, so one recovery of each state is enough.
        key = (case.name, frozenset(without_times(tree).items()))
        if key in recovered:
            return None
        recovered.add(key)
        return recover(case, folder)


def without_times(tree: Tree) -> Tree:
    """Return a tree without the files that hold the times of a run, which nothing reads."""
    return {name: content for name, content in tree.items() if not (name.endswith("/timing.json") or is_lock(name))}


def main(argv: list[str]) -> int:
    """Try all faults of all stages, or of the sample; print and record the figures."""
    started = time.monotonic()
    is_sample = argv == ["--sample"]
    figures = Counter({"lost": 0})
    by_stage = Counter()
    recovered = set()
    for case in make_cases(["fetch"] if is_sample else list(STAGES)):
        begun = time.monotonic()
        for fault in faults_of(case):
            by_stage[case.name] += 1
            if problem := problem_after(case, fault, recovered, figures):
                figures["lost"] += 1
                print(f"LOST: {case.name}, {fault}: {problem}", flush=True)
        print(f"{case.name}: {by_stage[case.name]} faults, {time.monotonic() - begun:.0f} s", flush=True)
    figures["faults"] = by_stage.total()
    print(", ".join(f"{number} {name}" for name, number in figures.items()))
    if not argv and not figures["lost"]:
        record("failing_calls", {**figures, "by_stage": dict(by_stage)}, started)
    return int(figures["lost"] > 0)


if __name__ == "__main__":
    shim.preload()
    sys.exit(main(sys.argv[1:]))
