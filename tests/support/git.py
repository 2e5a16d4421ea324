"""Git for tests of tools that read a repository."""

import subprocess
from pathlib import Path


def git(*words: str, folder: Path | None = None) -> str:
    """Run a command of Git in a folder, or in the working directory; return what it prints."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
