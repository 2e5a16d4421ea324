"""Where the torture programs write what they tried: benchmarks/results/torture/<name>.json."""

import os
import platform
import time
from collections.abc import Mapping

from lm.core.files import write_json
from support import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "torture"


def record(name: str, figures: Mapping, started: float) -> None:
    """Write and print the figures of a program that began at `started` (time.monotonic) and found nothing lost."""
    seconds = round(time.monotonic() - started)
    machine = {"processor": platform.processor(), "cores": os.cpu_count(), "system": platform.platform()}
    write_json(RESULTS / f"{name}.json", {"machine": machine, "seconds": seconds, **figures})
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in figures.items())}, {seconds} s")
