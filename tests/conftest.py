"""The fixtures of support."""

from support.fixtures import finished, pytest_collection_finish, pytest_collection_modifyitems  # noqa: F401
