"""Checks of an error that a stage reports: one sentence, the exit code, no partial files."""

import os
from pathlib import Path


def refused(status: int, stderr: str, code: int, *parts: str) -> str:
    """Check the exit status and that stderr ends with one sentence that contains all `parts`; return it."""
    lines = stderr.strip().splitlines()
    sentence = lines[-1] if lines else "(nothing on stderr)"
    assert status == code, (status, stderr)
    assert "Traceback" not in stderr, stderr
    assert sentence.startswith("error: "), stderr
    assert stderr.endswith("\n"), stderr
    for part in parts:
        assert part in sentence
    return sentence


def files_below(folder: Path) -> dict[str, bytes]:
    """Return path → content of every file, including hidden ones but not lock files, which stay."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            is_lock_file = name.startswith(".") and name.endswith(".lock")
            if not is_lock_file:
                path = Path(parent, name)
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
