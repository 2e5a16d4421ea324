"""Fragments about speed: tokenizing and training steps."""

from typing import NamedTuple

from fragments.text import machine, read, table
from harness import ratios


class Row(NamedTuple):
    """One comparison: the task, ours, a baseline, and the seconds of the baseline divided by ours."""

    task: str
    ours: str
    baseline: str
    speed_up: dict[str, float]  # median, min, max over the rounds


def tokenizing() -> list[Row]:
    """Return MB of text per second of the whole stage, the best alternative first."""
    found = read("tokenizing")
    version = found["versions"]
    times = found["times_longer_than_ours"]
    peers = {
        "datasets_joined": f"datasets {version['datasets']}, batched map, one row of ids per batch",
        "datatrove": f"datatrove {version['datatrove']}",
    }
    rates = {name: f"{rate['median']:.3g} MB/s" for name, rate in found["mb_per_s"].items()}
    task = f"tokenize {found['text']['utf8_bytes'] / 1e6:,.0f} MB"
    ours = f"gigatoken {version['gigatoken']}"
    return [Row(task, f"{ours}: {rates['ours']}", f"{peers[peer]}: {rates[peer]}", times[peer]) for peer in peers]


def steps() -> list[Row]:
    """Return tokens per second of training steps, both sides in the same format."""
    found = read("train_step")
    rows = []
    theirs = f"transformers {found['versions']['transformers']}"
    for question, ours, peer, dtype in (
        ("30m", "ours, float32", "transformers, float32", "float32"),
        ("270m", "ours", "transformers, autocast, allocator tuned", "bfloat16"),
    ):
        step = found["questions"][question]
        rates = {name: f"{rate:,.0f} tokens/s" for name, rate in step["tokens_per_s"].items()}
        times = ratios({name: step["seconds"][name] for name in (ours, peer)}, ours)[peer]
        task = f"a training step of {step['parameters'] / 1e6:.0f} M parameters"
        rows.append(Row(task, f"{dtype}: {rates[ours]}", f"{theirs}, {dtype}: {rates[peer]}", times))
    return rows


def in_words(times: dict[str, float]) -> str:
    """Return a median and its range: `3.9 (3.5 to 4.3)`."""
    if times["median"] < 3:
        digits = 2
    elif times["median"] < 30:
        digits = 1
    else:
        digits = 0
    median = f"{times['median']:.{digits}f}"
    if times["min"] == times["max"]:
        return f"{median} (one run)"
    return f"{median} ({times['min']:.{digits}f} to {times['max']:.{digits}f})"


def comparisons(rows: list[Row]) -> str:
    """Return rows as a table."""
    head = "task | ours | baseline | speed-up"
    return table(head, [(*row[:3], in_words(row.speed_up)) for row in rows])


def speeds() -> str:
    """docs/benchmarks.md: every comparison."""
    return f"Measured on {machine('tokenizing')}.\n\n{comparisons([*tokenizing(), *steps()])}"


def step() -> str:
    """docs/benchmarks.md: a training step beside the peak of the processor, with and without AMX."""
    with_amx = read("train_step")["questions"]["30m"]
    without_amx = read("train_step_without_amx")["questions"]["30m"]
    rows = []
    for case in ("ours", "ours, compiled", "ours, float32"):
        rows.append((case, *rate_and_share(with_amx, case), *rate_and_share(without_amx, case)))
    head = "30 M parameters, bfloat16 | with AMX | of its bfloat16 peak | without AMX | of its bfloat16 peak"
    return table(head, rows)


def rate_and_share(found: dict, case: str) -> tuple[str, str]:
    """Return the tokens per second of a case and its share of the peak; dashes if it was not measured."""
    if case not in found["tokens_per_s"]:
        return "–", "–"
    share = found["share_of_bf16_peak"][case]["median"]
    return f"{found['tokens_per_s'][case]:,.0f} tokens/s", f"{100 * share:.0f} %"
