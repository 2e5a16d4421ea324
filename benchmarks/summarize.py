"""What benchmarks/results/ says, as the table in README.md and as a picture.

    PYTHONPATH=src python benchmarks/summarize.py

Each row sets another way against ours: how many times longer it takes, the median over the rounds and
the smallest and largest ratio within one. Rewrites README.md between its two marks and draws
benchmarks/results/summary.png.
"""

from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from harness import summary
from lm.core.files import atomic_write, read_json, write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmarks: written by `make bench` -->\n", "<!-- benchmarks: end -->\n"
HEAD = "| what | ours | the other way | its figure | times longer |\n|---|---|---|---|---|\n"


class Row(NamedTuple):
    """One comparison: what is done, our figure, the other way and its figure, how many times longer it takes."""

    task: str
    ours: str
    other: str
    theirs: str
    times: dict[str, float]  # median, min, max


def read(name: str) -> dict:
    """The results of a benchmark."""
    return read_json(RESULTS / f"{name}.json")


PEERS = {
    "datasets_batched": "`datasets.map` batched, `encode_to_numpy`",
    "datasets_joined": "the same, a row a batch",
    "litdata": "litdata `optimize`",
    "datatrove": "datatrove",
    "nanogpt": "nanoGPT's way: `datasets.map`, 1,024 shards into a memmap",
}


def tokenizing() -> list[Row]:
    """MB of text a second by the whole stage, for two sizes."""
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
    "seed dataset, 2 workers": "the same with 2 workers",
    "litdata, 0 workers": "litdata's loader",
    "litdata, 2 workers": "the same with 2 workers",
}


def batches() -> list[Row]:
    """Microseconds a batch."""
    rows = []
    for shape, found in read("batches")["shapes"].items():
        took = {name: f"{value['median']:,.0f} µs" for name, value in found["microseconds_per_batch"].items()}
        task = f"a batch of {shape.replace('x', ' × ')} out of 1.2 GB"
        others = [name for name in found["times_longer_than_ours"] if name not in ("ours, arrays", "limit: widening")]
        times = found["times_longer_than_ours"]
        rows += [Row(task, took["ours"], LOADERS.get(name, name), took[name], times[name]) for name in others]
    return rows


def steps() -> list[Row]:
    """Tokens a second of training steps."""
    rows, found = [], read("train_step")["questions"]
    for name, task in (("30m", "a training step, 30 M parameters"), ("270m", "a training step, shape of Gemma 3 270M")):
        rates = {case: f"{rate:,.0f} tokens/s" for case, rate in found[name]["tokens_per_s"].items()}
        times = found[name]["times_longer_than_ours"]
        rows += [Row(task, rates["ours"], case, rates[case], times[case]) for case in times]
    return rows


def time_to_loss() -> list[Row]:
    """Seconds of training to a number of bits per byte, over the seeds."""
    found = read("time_to_loss")
    seconds = [run["seconds_to_target"] for run in found["runs"]]
    ours, theirs = (summary([run[name] for run in seconds])["median"] for name in ("ours", "reference"))
    task = f"training to {found['target_bits_per_byte']:.2f} bits per byte"
    times = summary([run["reference"] / run["ours"] for run in seconds])
    return [Row(task, f"{ours:.0f} s", "nanoGPT's recipe for a CPU", f"{theirs:.0f} s", times)]


def generation() -> list[Row]:
    """Seconds for so many ids."""
    found = read("generate")
    cached, uncached = (f"{summary(found['seconds'][name])['median']:.2f} s" for name in ("cached", "not"))
    times = found["times_longer_than_ours"]["not"]
    return [Row(f"generating {found['new_tokens']} tokens", cached, "without the cache", uncached, times)]


def all_rows() -> list[Row]:
    """Every comparison, in the table's order."""
    return [*tokenizing(), *batches(), *steps(), *time_to_loss(), *generation()]


def ratio_in_words(times: dict[str, float]) -> str:
    """3.9 (3.5 to 4.3)."""
    median, least, most = (rounded(times[name], times) for name in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def rounded(ratio: float, times: dict[str, float]) -> str:
    """With as many digits as suit the median."""
    return f"{ratio:.{2 if times['median'] < 3 else 1 if times['median'] < 30 else 0}f}"


def table(rows: list[Row]) -> str:
    """Markdown; a task and our figure stand in the first of their rows."""
    lines, previous = [], None
    for row in rows:
        first = (row.task, row.ours) if row.task != previous else ("", "")
        lines.append(f"| {' | '.join([*first, row.other, row.theirs, ratio_in_words(row.times)])} |\n")
        previous = row.task
    return HEAD + "".join(lines)


def with_table(readme: str, rows: list[Row]) -> str:
    """The README with the table between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


def draw(rows: list[Row]) -> Figure:
    """A line a comparison, under its task: the ratio's median as a dot, its range as a bar; ours is 1."""
    lines = []  # of text and row; a task has no row
    for index, row in enumerate(rows):
        if index == 0 or rows[index - 1].task != row.task:
            lines.append((row.task, None))
        lines.append((row.other.replace("`", ""), row))
    figure = Figure(figsize=(9, 0.26 * len(lines) + 0.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(lines)), [text for text, _ in lines], fontsize=9)
    axes.tick_params("y", length=0)
    for y, ((_, row), label) in enumerate(zip(lines, axes.get_yticklabels(), strict=True)):
        if row is None:
            label.set_fontweight("bold")
            axes.axhline(y - 0.5, color="0.85", linewidth=0.8)
        else:
            draw_ratio(axes, y, row.times)
    axes.axvline(1, color="0.1", linewidth=1)
    least, most = min(row.times["min"] for row in rows), max(row.times["max"] for row in rows)
    axes.set(xscale="log", xlabel="times longer than ours", xlim=(0.5 * least if least < 1 else 0.8, 3 * most))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def draw_ratio(axes, y: int, times: dict[str, float]) -> None:
    """Median, range, and the median in figures."""
    axes.plot([times["min"], times["max"]], [y, y], color="0.6", linewidth=5, solid_capstyle="round")
    axes.plot(times["median"], y, "o", color="0.1", markersize=5)
    text = rounded(times["median"], times)
    end, offset, side = (times["max"], 8, "left") if times["median"] >= 1 else (times["min"], -8, "right")
    axes.annotate(text, (end, y), (offset, 0), textcoords="offset points", ha=side, va="center", fontsize=9)


def main() -> None:
    """Write both."""
    rows, readme = all_rows(), ROOT / "README.md"
    write_text(readme, with_table(readme.read_text(encoding="utf-8"), rows))
    with atomic_write(RESULTS / "summary.png") as file:
        draw(rows).savefig(file, format="png", dpi=150)
    print(table(rows))


if __name__ == "__main__":
    main()
