"""Compare ours with each baseline: the rows of the benchmark tables and the picture of them.

    PYTHONPATH=src python benchmarks/summarize.py

Each row names a task, our result, a baseline and its result, and the speed-up: the median over the rounds with the
smallest and largest ratio within one round. This draws benchmarks/results/summary.png; benchmarks/figures.py writes
the tables into the documentation.
"""

from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from harness import summary
from lm.core.files import atomic_write, read_json

RESULTS = Path(__file__).resolve().parent / "results"
HEAD = "| task | ours | baseline | its result | speed-up |\n|---|---|---|---|---|\n"


class Row(NamedTuple):
    """Hold one comparison: the task, our result, the baseline, its result, and the speed-up."""

    task: str
    ours: str
    baseline: str
    theirs: str
    speed_up: dict[str, float]  # median, min, max


def read(name: str) -> dict:
    """Read the results of a benchmark."""
    return read_json(RESULTS / f"{name}.json")


PEERS = {
    "datasets_batched": "`datasets.map` batched, `encode_to_numpy`",
    "datasets_joined": "the same, ids joined into one row per batch",
    "litdata": "litdata `optimize`",
    "datatrove": "datatrove",
    "nanogpt": "nanoGPT's `prepare.py` (`datasets.map`, 1,024 shards into a memmap)",
}


def tokenizing() -> list[Row]:
    """Return MB of text per second of the whole stage, for two sizes."""
    rows = []
    for found in (read("tokenizing"), read("tokenizing_large")):
        rates = {name: f"{rate['median']:.3g} MB/s" for name, rate in found["mb_per_s"].items()}
        task = f"tokenizing {found['text']['utf8_bytes'] / 1e6:,.0f} MB, parquet → GPT-2 ids"
        times = found["times_longer_than_ours"]
        rows += [Row(task, rates["ours"], PEERS[name], rates[name], times[name]) for name in PEERS if name in times]
    return rows


LOADERS = {
    "nanoGPT get_batch": "nanoGPT's `get_batch`, row by row",
    "seed dataset, 0 workers": "a `Dataset` of windows in a `DataLoader`",
    "seed dataset, 2 workers": "a `Dataset` of windows, 2 workers",
    "litdata, 0 workers": "litdata's loader",
    "litdata, 2 workers": "litdata's loader, 2 workers",
}


def batches() -> list[Row]:
    """Return microseconds per batch, on each kind of processor."""
    rows = []
    for file in ("batches", "batches_amd_epyc"):
        for shape, found in read(file)["shapes"].items():
            took = {name: f"{value['median']:,.0f} µs" for name, value in found["microseconds_per_batch"].items()}
            task = f"a batch of {shape.replace('x', ' × ')} out of 1.2 GB{elsewhere(file)}"
            times = found["times_longer_than_ours"]
            others = [name for name in times if name not in ("ours, arrays", "limit: widening")]
            rows += [Row(task, took["ours"], LOADERS.get(name, name), took[name], times[name]) for name in others]
    return rows


def elsewhere(file: str) -> str:
    """Return `, on an AMD EPYC` for results of another processor than that of most results, else nothing."""
    found = read(file)["hardware"]["processor"]
    return "" if found == read("tokenizing")["hardware"]["processor"] else f", on an {found}"


CASES = {
    "ours, allocator as it is": "ours, default allocator",
    "the matrix products of ours alone": "upper bound: its matrix products alone",
}


def steps() -> list[Row]:
    """Return tokens per second of training steps."""
    rows, found = [], read("train_step")["questions"]
    for name, task in (("30m", "a training step, 30 M parameters"), ("270m", "a training step, shape of Gemma 3 270M")):
        rates = {case: f"{rate:,.0f} tokens/s" for case, rate in found[name]["tokens_per_s"].items()}
        times = found[name]["times_longer_than_ours"]
        rows += [Row(task, rates["ours"], CASES.get(case, case), rates[case], times[case]) for case in times]
    return rows


def time_to_loss() -> list[Row]:
    """Return seconds of training to the last loss of nanoGPT's recipe, over the seeds."""
    found = read("time_to_loss")
    seconds = [run["seconds_to_target"] for run in found["runs"] if run["seconds_to_target"]["ours"]]
    if not seconds:
        return []
    ours, theirs = (summary([run[name] for run in seconds])["median"] for name in ("ours", "reference"))
    task = f"training to nanoGPT's loss after {found['reference_s']:.0f} s{elsewhere('time_to_loss')}"
    times = summary([run["reference"] / run["ours"] for run in seconds])
    return [Row(task, f"{ours:.0f} s", "nanoGPT's recipe for a CPU", f"{theirs:.0f} s", times)]


def generation() -> list[Row]:
    """Return seconds to generate a number of tokens."""
    found = read("generate")
    cached, uncached = (f"{summary(found['seconds'][name])['median']:.2f} s" for name in ("cached", "not"))
    times = found["times_longer_than_ours"]["not"]
    return [Row(f"generating {found['new_tokens']} tokens", cached, "without the cache", uncached, times)]


def all_rows() -> list[Row]:
    """Return every comparison in the order of the table."""
    return [*tokenizing(), *batches(), *steps(), *time_to_loss(), *generation()]


def ratio_in_words(times: dict[str, float]) -> str:
    """Return the median and the range: `3.9 (3.5 to 4.3)`."""
    median, least, most = (rounded(times[name], times) for name in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def rounded(ratio: float, times: dict[str, float]) -> str:
    """Round a ratio to as many digits as suit the median."""
    return f"{ratio:.{2 if times['median'] < 3 else 1 if times['median'] < 30 else 0}f}"


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown; a task and our result appear in the first of its rows only."""
    lines, previous = [], None
    for row in rows:
        first = (row.task, row.ours) if row.task != previous else ("", "")
        lines.append(f"| {' | '.join([*first, row.baseline, row.theirs, ratio_in_words(row.speed_up)])} |\n")
        previous = row.task
    return HEAD + "".join(lines)


def draw(rows: list[Row]) -> Figure:
    """Draw one line per comparison under its task: the median ratio as a dot, the range as a bar; ours is 1."""
    lines = []  # (text, row); row is None for the title of a task
    for index, row in enumerate(rows):
        if index == 0 or rows[index - 1].task != row.task:
            lines.append((row.task, None))
        lines.append((row.baseline.replace("`", ""), row))
    figure = Figure(figsize=(9, 0.26 * len(lines) + 0.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(lines)), [text for text, _ in lines], fontsize=9)
    axes.tick_params("y", length=0)
    for y, ((_, row), label) in enumerate(zip(lines, axes.get_yticklabels(), strict=True)):
        if row is None:
            label.set_fontweight("bold")
            axes.axhline(y - 0.5, color="0.85", linewidth=0.8)
        else:
            draw_ratio(axes, y, row.speed_up)
    axes.axvline(1, color="0.1", linewidth=1)
    least, most = min(row.speed_up["min"] for row in rows), max(row.speed_up["max"] for row in rows)
    axes.set(xscale="log", xlabel="speed-up over the baseline", xlim=(0.4 * least if least < 1 else 0.8, 3 * most))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def draw_ratio(axes, y: int, times: dict[str, float]) -> None:
    """Draw the median and the range, and write the median beside them."""
    axes.plot([times["min"], times["max"]], [y, y], color="0.6", linewidth=5, solid_capstyle="round")
    axes.plot(times["median"], y, "o", color="0.1", markersize=5)
    text = rounded(times["median"], times)
    end, offset, side = (times["max"], 8, "left") if times["median"] >= 1 else (times["min"], -8, "right")
    axes.annotate(text, (end, y), (offset, 0), textcoords="offset points", ha=side, va="center", fontsize=9)


def main() -> None:
    """Draw the picture and print the table."""
    rows = all_rows()
    with atomic_write(RESULTS / "summary.png") as file:
        draw(rows).savefig(file, format="png", dpi=150)
    print(table(rows))


if __name__ == "__main__":
    main()
