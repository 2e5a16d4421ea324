"""Describe what made a result, the processor and the versions of packages, or name a missing package."""

import contextlib
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lm.core.errors import EnvironmentFailure

BITS = Path(__file__).resolve().parents[3] / "requirements" / "bits.txt"
OTHERS = ("matplotlib", "dvc")  # packages that draw a result and run the stages


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
    """Return the version of Python and of each package that a result depends on: those of bits.txt, and OTHERS."""
    pinned = re.findall(r"^([\w.-]+)==", BITS.read_text(encoding="utf-8"), re.M)
    return {"python": sys.version.split()[0], **{name: installed_version(name) for name in (*pinned, *OTHERS)}}


def installed_version(name: str) -> str:
    """Return the version of a package, "none" if it is not installed, as a package for GPUs may be."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


@contextlib.contextmanager
def explain_missing(package: str, remedy: str) -> Iterator[None]:
    """Raise EnvironmentFailure with a remedy if an import of the block fails; `package` if the error names none."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        raise EnvironmentFailure(f"{missing} is not installed; {remedy}") from None
