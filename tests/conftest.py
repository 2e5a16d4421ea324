"""Shared by all tests: `lm` and the stages import as they do when a stage runs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
