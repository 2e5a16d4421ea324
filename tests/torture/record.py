"""Where the torture programs write what they tried: benchmarks/results/torture/<name>.json."""

import time
from collections.abc import Mapping

from harness import hardware
from lm.core.files import write_json
from support import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "torture"


def record(name: str, figures: Mapping, started: float) -> None:
    """Write and print the figures of a program that began at `started` (time.monotonic) and found nothing lost."""
    seconds = round(time.monotonic() - started)
    write_json(RESULTS / f"{name}.json", {"machine": hardware(), "seconds": seconds, **figures})
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}, {seconds} s")
