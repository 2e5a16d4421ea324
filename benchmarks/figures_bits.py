"""The figures of README.md and docs/troubleshooting.md about equal bits."""

import json

from recorded import ROOT, computed, read


def rounding() -> str:
    """docs/troubleshooting.md: how far rounding moves a loss and a result."""
    found = read("tolerance")
    spreads = found["spread_nats_per_token"]
    rows = ["| default run computed in | bits per byte |", "|---|---|"]
    rows += [
        f"| {computed(run)} | {run['metrics']['bits_per_byte']:.4f} |" for run in map(read, ("default", "float32"))
    ]
    return (
        f"After {found['tokens']:,} tokens, {len(found['runs'])} runs with one and two threads and with AVX2, AVX512 "
        f"and AMX differ by up to {spreads['bfloat16']:.4f} nats per token in bfloat16 and {spreads['float32']:.7f} in "
        "float32. At the end of a run:\n\n" + "\n".join(rows)
    )


def reproduced() -> str:
    """README: what `make reproduce` compared."""
    outputs = json.loads((ROOT / "metrics" / "repro.json").read_text(encoding="utf-8"))["outputs"].values()
    same = sum(output["same_in_both_runs"] for output in outputs)
    return f"`make reproduce` ran the pipeline in two fresh clones: {same} of {len(outputs)} outputs had equal bytes."


FRAGMENTS = {"rounding": rounding, "reproduced": reproduced}
