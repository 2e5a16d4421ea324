"""Fixtures of the tests of exact numerics."""

import pytest
import torch

from lm.exact.cpu import parts
from lm.exact.threads import set_num_threads


@pytest.fixture
def threads(monkeypatch):
    """Return the function that sets the number of threads, each of which works, however little there is to do."""
    before = torch.get_num_threads()
    monkeypatch.setattr(parts, "PART_WORK", 1)
    yield lambda number: set_num_threads(number, "exact")
    set_num_threads(before, "fast")
