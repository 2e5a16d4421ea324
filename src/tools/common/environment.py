"""Say what made a result: the commit, the processor, and the versions of the packages."""

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "numpy", "tokenizers", "pyarrow", "matplotlib", "dvc")  # that a result depends on


def git(*words: str) -> str | None:
    """Return what a command of git prints, or None if it fails."""
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    """Return the name of the processor, with family and model where Linux tells them: "AMD EPYC" is several."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = found.get("model name", platform.machine())
    numbers = [f"{word} {found[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in found]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def versions() -> dict[str, str]:
    """Return the version of Python and of each of PACKAGES."""
    return {"python": sys.version.split()[0], **{name: version(name) for name in PACKAGES}}
