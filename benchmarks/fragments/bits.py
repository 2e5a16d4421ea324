"""Fragments about bits: exact numerics, processors and GPUs."""

import json

from fragments.text import computed, machine, read, table
from harness import ROOT


def rounding() -> str:
    """docs/reproducibility.md: the default run in exact and in fast numerics."""
    runs = [read("default"), read("fast")]
    rows = [(computed(run), f"{run['metrics']['bits_per_byte']:.4f}") for run in runs]
    return table("default run computed in | bits per byte", rows)


def exact() -> str:
    """docs/reproducibility.md: exact numerics beside torch's float32, in time and in results."""
    found = read("exact")
    rows = []
    for name, times in found["exact_times_longer"].items():
        multiple = f"{times['median']:.2f} ({times['min']:.2f} to {times['max']:.2f})"
        rows.append((f"time of a {name}, as a multiple", multiple))
    largest = found["largest_loss_difference_nats"]
    mean = found["mean_loss_difference_nats"]
    rows.append((f"largest difference of a loss, of {found['scored_tokens']:,} tokens", f"{largest:.1g} nats"))
    rows.append(("mean difference of these losses", f"{mean:.1g} nats"))
    rows.append(("relative difference of a gradient, median", f"{found['median_gradient_difference']:.1g}"))
    where = f"The default model on {machine('exact')}, a step of {found['step_tokens']:,} tokens:"
    return f"{where}\n\n{table('against float32 in torch | measured', rows)}"


def gpu_models() -> str:
    """docs/gpu.md: the steps of some models on a GPU in fast numerics, with the card and the versions."""
    found = read("gpu")
    versions = f"torch {found['versions']['torch']}, CUDA {found['cuda']}, Triton {found['versions']['triton']}"
    rows = [
        (
            f"`{row['model']}`, {row['parameters'] / 1e6:.1f} M parameters",
            f"{row['batch_tokens'] // row['seq_len']} × {row['seq_len']:,}",
            f"{row['tokens_per_s']:,}",
            f"{100 * row['share_of_peak']:.0f} % of {row['peak_tflops']:.0f} TFLOP/s",
            f"{row['peak_memory_gib']:.1f} GiB",
        )
        for row in found["models"]
    ]
    head = "model | tokens of a step | tokens per second | share of the measured peak | memory"
    return f"On an {found['device']} ({versions}), compiled, in bfloat16, with Muon:\n\n{table(head, rows)}"


def gpu_compiled() -> str:
    """docs/gpu.md: what torch's compiler makes of a block for GPUs that were not there, where FlexAttention is used.

    `small` is left out: its attention is that of gpt2_size.
    """
    found = read("compiled")
    rows = []
    for case in found["cases"]:
        attention = case["most"].get("attention backward")
        if not case["documents"] or case["compiled"] != "training" or case["model"] == "small" or not attention:
            continue
        forward, backward = case["graphs"][:2]
        launches = [graph["kernels"] + graph["library_calls"] for graph in (forward, backward)]
        gigabytes = [graph["bytes"] / 1e9 for graph in (forward, backward)]
        rows.append(
            (
                f"`{case['model']}`",
                f"{case['capability'] / 10}",
                f"{launches[0]} + {launches[1]}",
                f"{gigabytes[0]:.2f} + {gigabytes[1]:.2f}",
                f"{attention['spilled_bytes']}",
                f"{attention['shared_bytes'] / 1024:.0f} of {case['shared_bytes'] // 1024}",
            )
        )
    head = "model | capability | launches | GB | bytes spilled | KiB shared"
    versions = f"torch {found['versions']['torch']}, Triton {found['versions']['triton']}"
    return f"Compiled, not measured ({versions}):\n\n{table(head, rows)}"


def processors() -> str:
    """docs/reproducibility.md: the processors that gave the committed bits, by `python src prove --record`."""
    golden = json.loads((ROOT / "metrics" / "golden_bits.json").read_text(encoding="utf-8"))
    committed = [list(golden[run]["weights"].values())[-1] for run in ("short", "minute")]
    threads: dict[tuple, set[int]] = {}
    for entry in golden["seen_on"]:
        if entry["weights"] in committed:
            row = entry["processor"], entry["how"], entry["run"], entry["weights"]
            threads.setdefault(row, set()).add(entry["threads"])
    rows = [
        (name, how, f"`{run}`", ", ".join(map(str, sorted(count))), f"`{digest}`")
        for (name, how, run, digest), count in sorted(threads.items())
    ]
    return table("processor | how it was run | run | threads | digest of the weights", rows)
