"""The fixtures of tests/."""

from support.fixtures import finished  # noqa: F401
