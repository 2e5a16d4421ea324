"""Say which package is missing, and how to install it, if a tool needs more than requirements.txt."""

import contextlib
from collections.abc import Iterator

from lm.core.errors import EnvironmentFailure


@contextlib.contextmanager
def explain_missing(package: str, remedy: str) -> Iterator[None]:
    """Raise EnvironmentFailure with a remedy if an import of the block fails; `package` if the error names none."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or package).partition(".")[0]
        raise EnvironmentFailure(f"{missing} is not installed; {remedy}") from None
