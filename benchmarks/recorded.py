"""Read committed results: benchmarks/results/NAME.json."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> dict:
    """Read benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def machine(name: str) -> str:
    """Return the machine of a benchmark: processor, cores and memory."""
    found = read(name)["hardware"]
    return f"{found['cores']} cores of an {found['processor']}, {found['memory_gib']:.0f} GiB of memory"


def machine_of(run: dict) -> dict:
    """Return the device, dtype and threads of a recorded run; runs of before portable numerics have them elsewhere."""
    return run.get("computed_on") or run["segments"][-1]


def computed(run: dict) -> str:
    """Return what a recorded run was computed on: `portable float32 on 2 threads, AVX2`."""
    last = machine_of(run)
    threads = f"{last['threads']} thread{'s' if last['threads'] > 1 else ''}"
    device = last.get("instruction_set") or last["device"]
    portable = "portable " if run["segments"][-1].get("numerics") == "portable" else ""
    return f"{portable}{last['dtype']} on {threads}, {device}"
