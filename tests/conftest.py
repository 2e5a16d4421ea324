"""The fixtures of support."""

from support.fixtures import finished, unrounded  # noqa: F401
