"""Helpers that several tests share, and where the repository is."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
