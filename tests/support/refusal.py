"""Checks of an error that a stage reports: one sentence, the exit code, no partial files."""

import os
from pathlib import Path


def refused(status: int, stderr: str, code: int, *words: str) -> str:
    """Check that the exit status is `code` and that stderr ends with one sentence with all `words`; return it."""
    assert "Traceback" not in stderr, stderr
    assert status == code, (status, stderr)
    assert stderr.endswith("\n"), stderr
    sentence = stderr.splitlines()[-1]
    assert sentence.startswith("error: "), stderr
    missing = [each for each in words if each not in sentence]
    assert missing == [], sentence
    return sentence


def files_below(folder: Path) -> dict[str, bytes]:
    """Return path → content of every file, including hidden ones but not lock files, which stay."""
    contents = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            is_lock = name.startswith(".") and name.endswith(".lock")
            if not is_lock:
                path = Path(parent, name)
                contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents
