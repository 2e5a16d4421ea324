"""Fragments about bits: exact numerics, processors and GPUs."""

import json
import re

from fragments.text import computed, machine, paragraph, read, table
from harness import ROOT

RTX_4090_TFLOPS = 165  # the peak in bfloat16 of NVIDIA's data sheet, as in docs/exact.md


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


def gpu() -> str:
    """docs/exact.md: what a GPU computed in exact numerics, and how fast."""
    found = read("gpu")
    run = found["default_run"]
    by_numerics = {row["numerics"]: row for row in found["exact"] if row["model"] == "gpt2_size"}
    exact_rate = by_numerics["exact"]["tokens_per_s"]
    float32_rate = by_numerics["fast"]["tokens_per_s"]
    ratios = [row["ratio"] for row in found["products"]]
    text = (
        f"On an {found['device']} (torch {found['versions']['torch']}, Triton {found['versions']['triton']}) the whole "
        f"default run gave the committed weights (`{run['best_weights_sha256'][:16]}…`), all digests of its "
        f"validations and the committed score. Stopped there at step {run['stopped_on_the_gpu_at_step']} and ended on "
        f"a CPU, it gave the same weights. A step of {by_numerics['exact']['parameters'] / 1e6:.0f} million parameters "
        f"takes {exact_rate:,} tokens a second, {exact_rate / float32_rate:.2f} times the rate of torch's own float32. "
        f"Products reach {min(ratios):.2f} to {max(ratios):.2f} times the rate of cuBLAS in float32. This is one "
        f"measurement of one card."
    )
    return paragraph(text)


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


def gpu_time() -> str:
    """docs/gpu.md: how long a recipe would take at the rate that was measured with a model of its size."""
    (row,) = [row for row in read("gpu")["models"] if row["model"] == "gpt2_size"]
    comment = (ROOT / "recipes" / "large_gpu.yaml").read_text(encoding="utf-8")
    flop = float(re.search(r"\(([\d.]+e\d+) FLOP\)", comment)[1])
    rate = row["share_of_peak"] * row["peak_tflops"]
    of_4090 = row["share_of_peak"] * RTX_4090_TFLOPS
    share = f"{100 * row['share_of_peak']:.0f} %"
    return paragraph(
        f"**Time.** Each [recipe](../recipes/README.md) names its work in FLOP. No recipe was run on a GPU. The H100 "
        f"below sustained {share} of its peak with `gpt2_size`, which is {rate:.0f} TFLOP/s. At this rate the steps of "
        f"`large_gpu` ({flop:.1e} FLOP) would take {flop / rate / 1e12 / 60:.0f} minutes. If an RTX 4090 also sustains "
        f"{share} of [its peak](exact.md#what-it-costs) of {RTX_4090_TFLOPS} TFLOP/s, they take "
        f"{flop / of_4090 / 1e12 / 3600:.1f} hours there."
    )


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
