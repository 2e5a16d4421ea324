"""Shared by all tests: `lm` and the stages import as they do when a stage runs; torch uses one thread.

Threads wait for each other by spinning, which beside other processes makes small steps many times slower.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
