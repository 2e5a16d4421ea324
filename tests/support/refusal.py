"""Checks of an error that a stage reports: one sentence, the exit code, no partial files."""

import os
from pathlib import Path


def refused(status: int, stderr: str, code: int, *parts: str) -> str:
    """Check the exit status and that stderr ends with one sentence that contains all `parts`; return it."""
    assert "Traceback" not in stderr, stderr
    last = stderr.strip().splitlines()[-1] if stderr.strip() else "(nothing on stderr)"
    assert status == code, (status, stderr)
    assert last.startswith("error: ") and stderr.endswith("\n"), stderr
    assert [part for part in parts if part not in last] == [], last
    return last


def files_below(folder: Path) -> dict[str, bytes]:
    """Return path → content of every file, including hidden ones but not lock files, which stay."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    kept = (path for path in paths if not (path.name.startswith(".") and path.name.endswith(".lock")))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}
