"""The fixtures of support."""

from support.fixtures import finished  # noqa: F401
