"""The fixtures of support."""

from support.fixtures import (  # noqa: F401
    committed,
    finished,
    finished_commit,
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_unconfigure,
)
