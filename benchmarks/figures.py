"""Write the figures that README.md, docs/ and data/README.md quote, from committed results alone.

    PYTHONPATH=src:benchmarks python benchmarks/figures.py

A page marks each place with `<!-- figures:NAME -->` and `<!-- end -->`, each on a line of its own. The lines between
them are what FRAGMENTS[NAME] returns, so a figure has one source and running this again changes nothing.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

import figures_bits
import figures_evaluation
import figures_speed
import figures_torture
import recipes
import summarize
from lm.core.files import write_text
from lm.evaluate.intervals import ratio_interval
from recorded import RESULTS, ROOT, computed, machine, machine_of, read

MARKED = re.compile(r"(^<!-- figures:([\w-]+) -->\n).*?(^<!-- end -->$)", re.M | re.S)


def pages() -> list[Path]:
    """Return the pages that may hold figures."""
    return [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(page: str) -> str:
    """Return a page with every marked place filled in."""
    fragments = {name: FRAGMENTS[name]().strip() for _, name, _ in MARKED.findall(page)}
    return MARKED.sub(lambda mark: mark[1] + (f"\n{text}\n\n" if (text := fragments[mark[2]]) else "") + mark[3], page)


def default_run() -> str:
    """README: what the default run takes and where it ends."""
    run = read("default")
    found, last = run["metrics"], machine_of(run)
    return (
        f"With {last['threads']} CPU threads ({last['instruction_set']}, {last['dtype']}), training a model of "
        f"{found['parameters'] / 1e6:.1f} million parameters took {found['train_seconds'] / 60:.1f} minutes and "
        f"ended at **{found['bits_per_byte']:.3f} bits per byte**."
    )


def first_experiment() -> str:
    """README: the output of the first experiment, as `dvc metrics diff` printed it."""
    path = RESULTS / "first_experiment.txt"
    return f"```text output\n{path.read_text(encoding='utf-8').strip()}\n```" if path.exists() else ""


def results() -> str:
    """README: one row per recorded run."""
    rows = [
        "| run | tokens seen | bits per byte | on clean documents | computed in | training |",
        "|---|---|---|---|---|---|",
    ]
    for name, label in (("default", "default: C++ headers"), ("stories", "`make stories`: stories of known entropy")):
        run = read(name)
        found, entropy = run["metrics"], run["evaluation"].get("entropy")
        floor = f" (entropy of the text: {entropy['floor_bits_per_byte']:.3f})" if entropy else ""
        clean = f"{found['clean_bpb']:.3f}" if "clean_bpb" in found and not entropy else "–"
        cells = (
            label, f"{found['tokens_seen'] / 1e6:.2f} M", f"{found['bits_per_byte']:.3f}{floor}", clean, computed(run),
            f"{found['train_seconds']:.0f} s",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def speed() -> str:
    """README: one row per benchmark."""
    step = next(row for row in summarize.steps() if row.baseline == "transformers, float32")
    others = (summarize.tokenizing, summarize.batches, summarize.time_to_loss, summarize.generation)
    first, *rest = (rows()[0] for rows in others)
    return summarize.table([first, rest[0], step, *rest[1:]])


def default_data() -> str:
    """docs/data.md: the size of the default corpus."""
    found = read("default")["audit"]
    rows = ["| file | documents | text | tokens | text per token | size |", "|---|---|---|---|---|---|"]
    for split in ("train", "validation"):
        counts = found[split]
        cells = (
            f"`{split}.bin`", f"{counts['documents']:,}", f"{counts['utf8_bytes']:,} bytes", f"{counts['tokens']:,}",
            f"{counts['bytes_per_token']:.2f} bytes", f"{2 * counts['tokens'] / 1e6:.1f} MB",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def weights() -> str:
    """docs/data.md: the size of the default model's weights."""
    parameters = read("default")["metrics"]["parameters"]
    return f"The default model has {parameters:,} parameters, so each file of weights takes {4e-6 * parameters:.1f} MB."


def tables_of(name: str) -> list[str]:
    """Return the tables of benchmarks/results/NAME.md."""
    return re.findall(r"(?:^\|.*\n)+", (RESULTS / f"{name}.md").read_text(encoding="utf-8"), re.M)


def optimizers() -> str:
    """docs/experiments.md: Muon against AdamW, as `compare` wrote it."""
    _, configurations, noise, *_ = tables_of("optimizers")
    rows = np.loadtxt(RESULTS / "optimizers.csv", delimiter=",", skiprows=1)
    sizes, rates = rows[:, 1], rows[:, 3] - rows[:, 2]
    now = ratio_interval(rates * sizes, sizes, np.random.default_rng(1))
    return (
        f"{configurations}\n{noise}\nThe present version, which allows for a difference that depends on the length "
        f"(here the correlation with log bytes is {np.corrcoef(rates, np.log(sizes))[0, 1]:.2f}), has the interval "
        f"{now.low:+.4f} to {now.high:+.4f} and p = {now.p_value:.2g} for all 96 documents."
    )


def documents() -> str:
    """docs/experiments.md: attention across and within documents, as `compare` wrote it."""
    _, configurations, noise, *_ = tables_of("documents")
    return f"{configurations}\n{noise}"


def document_mask() -> str:
    """docs/experiments.md: what attention within documents costs."""
    found = read("document_mask")
    rows = ["| train.seq_len | tokens per document | time of a step, `false` / `true` |", "|--:|--:|---|"]
    for case in found["cases"]:
        longer = case["times_longer"]
        cells = f"{longer['median']:.2f} ({longer['min']:.2f} to {longer['max']:.2f})"
        rows.append(f"| {case['seq_len']} | {case['document_tokens']:,} | {cells} |")
    return (
        f"Processor time of a training step of the default model in {found['dtype']} with one thread, in turns, on a "
        "machine that other processes kept busy; the median and the range of the rounds:\n\n" + "\n".join(rows)
    )


def interval_coverage() -> str:
    """docs/metrics.md: how often 95 % intervals held the truth."""
    rows = [
        "| population | documents | held | ±1.96 standard errors held | p ≤ 0.01 | p ≤ 0.5 |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    keys = ("coverage", "coverage of 1.96 standard errors", "p <= 0.01", "p <= 0.5")
    for name, by_count in read("interval_coverage")["coverage"].items():
        for count, measured in by_count.items():
            rows.append(f"| {name} | {count} | {' | '.join(f'{100 * measured[key]:.1f} %' for key in keys)} |")
    return "\n".join(rows)


def scaling_coverage() -> str:
    """docs/experiments.md: how often the 95 % intervals of `scaling` held the truth."""
    found = read("interval_coverage")["scaling"]
    names = {"E": "E", "A": "A", "alpha": "α", "B": "B", "beta": "β"}
    columns = list(next(iter(found["coverage"].values())))
    rows = [f"| law | {' | '.join(names.get(name, name) for name in columns)} |", f"|---{'|--:' * len(columns)}|"]
    for name, measured in found["coverage"].items():
        rows.append(f"| {name} | {' | '.join(f'{measured[column]:.0%}' for column in columns)} |")
    return (
        f"In {found['trials']} simulated sweeps of 18 runs, 95 % intervals held the truth this often:\n\n"
        + "\n".join(rows)
    )


def longer_runs() -> str:
    """docs/experiments.md: the longer runs, what each takes, and their commands."""
    peaks = ", ".join(f"{name} {peak}" for name, peak in recipes.PEAK_TFLOPS.items())
    return (
        f"{recipes.table()}\n\nThe times are FLOP divided by FLOP per second, for the training steps alone. On the "
        f"CPU, the speed is the measured one of a step in bfloat16 ({machine('train_step')}). On GPUs it is computed, "
        f"not measured: {recipes.UTILISATION:.0%} of the stated dense bfloat16 throughput in TFLOP/s ({peaks}); "
        f"small models reach less.\n\n```bash parse\n{recipes.commands()}\n```"
    )


def scaling() -> str:
    """docs/experiments.md: how well the law fits, as `scaling` wrote it."""
    _, law, predicted, *_ = tables_of("scaling")
    report = (RESULTS / "scaling.md").read_text(encoding="utf-8")
    (error,) = re.findall(r"^- ((?:It misses|Error of the fit).*)$", report, re.M)
    return f"{law}\n{error}\n\n{predicted}"


FRAGMENTS: dict[str, Callable[[], str]] = {
    "default-run": default_run, "first-experiment": first_experiment, "results": results, "speed": speed,
    "default-data": default_data, "weights": weights,
    "optimizers": optimizers, "documents": documents, "document-mask": document_mask, "scaling": scaling,
    "interval-coverage": interval_coverage, "scaling-coverage": scaling_coverage, "longer-runs": longer_runs,
    **figures_bits.FRAGMENTS, **figures_evaluation.FRAGMENTS,
    **figures_speed.FRAGMENTS, **figures_torture.FRAGMENTS,
}  # fmt: skip


def main() -> None:
    """Fill in every page."""
    for path in pages():
        page = path.read_text(encoding="utf-8")
        if filled(page) != page:
            write_text(path, filled(page))
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
