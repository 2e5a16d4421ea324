"""Cut the power after every file operation of every stage, in every way that loses data, and recover.

    PYTHONPATH=src:tests python benchmarks/torture/crash_states.py [--sample]

For every state of the disk that a cut can leave (disk.py): each final path holds a whole file, old or new; nothing is
lost that was reported as done; and the same stage, run again, ends with the right bytes. States that differ only inside
temporary files, which the next writer removes unread, are recovered once. --sample tries a token file and a folder
only. The exit status is 1 if anything is lost.
"""

import contextlib
import functools
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import lm.core.environment  # noqa: F401 - before NumPy

import numpy as np
import shim
from disk import Disk, joined, temporary_part
from small_stages import STAGES, Case, Tree, below, copy_of, make_cases, read_tree, record, recover, run

from lm.core.files import atomic_folder
from lm.tokens.tokenfile import write_tokens

TOKENIZER = {"kind": "bpe", "vocab_size": 9, "eot_id": 0, "sha256": "ab" * 32}
NUM_CHECKPOINTS = 4


def write_token_file(ids: range) -> int:
    """Write a token file into the current folder."""
    chunks = np.array_split(np.array(ids, np.uint16), 2)
    write_tokens(Path("t/t.bin"), chunks, "uint16", lambda: {"tokenizer": TOKENIZER})
    return 0


def write_folder(content: bytes) -> int:
    """Write a folder of files that their writers do not sync into the current folder."""
    with atomic_folder(Path("f/folder")) as folder:
        (folder / "inner").mkdir()
        for name in ("first", "inner/second"):
            (folder / name).write_bytes(content)
    return 0


def save_checkpoints(num_states: int) -> int:
    """Save the state of one step after the other into the current folder."""
    import torch

    from lm.train.checkpoints import prune_runs, save_checkpoint

    prune_runs(Path(".runs"), Path(".runs/run"), 1)
    for step in range(num_states):
        save_checkpoint(Path(".runs/run"), step, {"step": step, "weights": torch.full((1000,), float(step))})
        shim.mark()
    return 0


def newest_step(folder: Path) -> int:
    """Return the step of the newest intact checkpoint that `save_checkpoints` has left, -1 if there is none."""
    from lm.train.checkpoints import load_newest_checkpoint

    with contextlib.redirect_stderr(io.StringIO()):
        state = load_newest_checkpoint(folder / ".runs/run")
    return -1 if state is None else state["step"]


def case_of(write: Callable[..., int], old, new, outputs: list[str]) -> Case:
    """Return the case of a function that writes `new` where it has written `old`, or where nothing is (None)."""
    with copy_of({}) as folder:
        if old is not None:
            assert run(functools.partial(write, old), folder).code == 0
        before = read_tree(folder)
        work = functools.partial(write, new)
        assert run(work, folder).code == 0
        return Case(write.__name__, work, before, outputs, below(read_tree(folder), outputs))


class Cut(NamedTuple):
    """What a power cut leaves, the disk that it hit, and how much of the work was reported as done before."""

    tree: Tree
    disk: Disk
    num_marks: int
    is_done: bool


def cuts_of(case: Case) -> Iterator[Cut]:
    """Yield every cut of the work, those that leave the same only once."""
    with copy_of(case.before) as folder, tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        ended = run(case.work, folder, log)
        assert ended.code == 0, ended.err
        operations = joined(shim.read_log(log, folder))
    num_marks = 0
    total = [operation.call for operation in operations].count("mark")
    disk = Disk(case.before)
    tried = set()
    for operation in operations:
        disk.apply(operation)
        num_marks += operation.call == "mark"
        for tree in disk.after_cut():
            key = (num_marks, frozenset(tree.items()))
            if key not in tried:
                tried.add(key)
                yield Cut(tree, disk, num_marks, num_marks == total)


def final_files(tree: Tree) -> frozenset:
    """Return the files and folders of a tree, and of temporary ones only the names at the top."""
    found: set = set()
    for name, content in tree.items():
        temporary = temporary_part(name)
        found.add(temporary or (name, content))
    return frozenset(found)


def problem_after(case: Case, cut: Cut, recovered: set) -> str | None:
    """Return what a cut loses, or None."""
    for name, content in cut.tree.items():
        if not temporary_part(name) and content is not None and content not in cut.disk.published.get(name, ()):
            return f"{name} is not whole"
    if cut.is_done and below(cut.tree, case.outputs) != case.right:
        return "outputs are lost after the end"
    key = (case.name, cut.num_marks, final_files(cut.tree))
    if key in recovered:
        return None
    recovered.add(key)
    with copy_of(cut.tree) as folder:
        if case.name == "save_checkpoints" and newest_step(folder) < min(cut.num_marks, NUM_CHECKPOINTS) - 1:
            return "a saved checkpoint is lost"
        return recover(case, folder)


def main(argv: list[str]) -> int:
    """Try all states of all cases, or of the sample; print and record the figures."""
    started = time.monotonic()
    num_lost = 0
    cases = [case_of(write_token_file, old, range(8), ["t/t.bin", "t/t.json"]) for old in (range(5), None)]
    cases += [case_of(write_folder, old, b"newer", ["f/folder"]) for old in (b"old", None)]
    if argv != ["--sample"]:
        cases.append(case_of(save_checkpoints, None, NUM_CHECKPOINTS, [".runs/run/checkpoint-000000003.pt"]))
        cases += make_cases(list(STAGES))
    by_case = Counter()
    recovered = set()
    for case in cases:
        begun = time.monotonic()
        for cut in cuts_of(case):
            by_case[case.name] += 1
            if problem := problem_after(case, cut, recovered):
                num_lost += 1
                print(f"LOST: {case.name}, state {by_case[case.name]}: {problem}", flush=True)
        print(f"{case.name}: {by_case[case.name]} states, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{by_case.total()} states, {len(recovered)} recoveries, {num_lost} lost")
    if not argv and not num_lost:
        record("crash_states", {"states": by_case.total(), "lost": 0, "by_case": dict(by_case)}, started)
    return int(num_lost > 0)


if __name__ == "__main__":
    shim.preload()
    sys.exit(main(sys.argv[1:]))
