"""The fixtures of tests/."""

from support.fixtures import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure,
)
from support.project import finished, pipeline  # noqa: F401
