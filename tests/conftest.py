"""The hooks and fixtures of support."""

from support.fixtures import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_configure,
    stub_losses,
)
from support.process import ended_processes  # noqa: F401
from support.project import committed, finished, finished_commit, held_out, pipeline  # noqa: F401
