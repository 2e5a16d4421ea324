"""Shared by all tests: `lm`, the stages and the benchmarks import as they do when they run; one torch thread.

Threads wait for each other by spinning, which beside other processes makes small steps many times slower.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
