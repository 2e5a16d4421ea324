"""The figures of README.md and docs/troubleshooting.md about equal bits."""

import json

from recorded import ROOT, computed, read


def rounding() -> str:
    """docs/troubleshooting.md: how far rounding moves a loss and a result in fast numerics."""
    found = read("tolerance")
    spreads = found["spread_nats_per_token"]
    rows = ["| default run computed in | bits per byte |", "|---|---|"]
    rows += [f"| {computed(run)} | {run['metrics']['bits_per_byte']:.4f} |" for run in map(read, ("default", "fast"))]
    return (
        f"After {found['tokens']:,} tokens, {len(found['runs'])} runs in fast numerics with one and two threads and "
        f"with AVX2, AVX512 and AMX differ by up to {spreads['bfloat16']:.4f} nats per token in bfloat16 "
        f"and {spreads['float32']:.7f} in float32. At the end of a run:\n\n" + "\n".join(rows)
    )


def reproduced() -> str:
    """README: what `make reproduce` compared."""
    outputs = json.loads((ROOT / "metrics" / "repro.json").read_text(encoding="utf-8"))["outputs"].values()
    same = sum(output["same_in_both_runs"] for output in outputs)
    return f"`make reproduce` ran the pipeline in two fresh clones: {same} of {len(outputs)} outputs had equal bytes."


def processors() -> str:
    """docs/troubleshooting.md: the processors on which `python src prove` found the committed bits."""
    golden = json.loads((ROOT / "metrics" / "golden_bits.json").read_text(encoding="utf-8"))
    present = [list(golden[run]["weights"].values())[-1] for run in ("short", "minute")]
    return table_of_processors(golden["seen_on"], present)


def table_of_processors(seen: list[dict], present: list[str]) -> str:
    """Return a row for each processor, way to run it and run, and what the rows do not show.

    Digests that are not among the `present` ones are of earlier versions of a run.
    """
    threads: dict[tuple, set[int]] = {}
    for entry in seen:
        row = entry["processor"], entry["how"], entry["run"], entry["weights"]
        threads.setdefault(row, set()).add(entry["threads"])
    rows = ["| processor | how it was run | run | threads | digest of the weights |", "|---|---|---|---|---|"]
    rows += [
        f"| {name} | {how} | `{run}` | {', '.join(map(str, sorted(counts)))} | `{digest}` |"
        for (name, how, run, digest), counts in sorted(threads.items())
    ]
    table = "\n".join(rows) if seen else "No processor is recorded yet."
    return "\n\n".join([table, *limits_of(seen, present)])


def limits_of(seen: list[dict], present: list[str]) -> list[str]:
    """Return what the list of processors does not show, one paragraph at most."""
    sentences = []
    if any(entry["weights"] not in present for entry in seen):
        digests = " and ".join(f"`{digest}`" for digest in present)
        sentences.append(f"The present runs end with {digests}; other digests are those of earlier versions.")
    if any(entry["how"].startswith("emulated") for entry in seen):
        sentences.append(
            "An emulated processor shows which code the libraries choose for it, not that the run took place on one."
        )
    if not any("Intel" in entry["processor"] and entry["how"] == "natively" for entry in seen):
        sentences.append("No real Intel processor has been tried yet.")
    return [" ".join(sentences)] if sentences else []


FRAGMENTS = {"rounding": rounding, "reproduced": reproduced, "processors": processors}
