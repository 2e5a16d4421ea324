"""One torch thread for all tests.

Threads wait for each other by spinning, which beside other processes makes small steps many times slower.
"""

import os

import lm.core.environment  # noqa: F401 - before torch

os.environ.setdefault("OMP_NUM_THREADS", "1")
