"""Fragments about runs of the pipeline: the default run, experiments, seeds, judge, and the graph of the stages."""

import re
import statistics

from evidence.answer import by_count
from evidence.power import POWER, detectable_by_runs
from fragments.text import machine, output, paragraph, read, table
from harness import ROOT
from lm.core.params import read_yaml

OTHER_SEEDS = (2, 3, 4, 5)


def default_run() -> str:
    """README: what the default run takes and where it ends."""
    run = read("default")
    params = read_yaml(ROOT / "params.yaml")
    presets = read_yaml(ROOT / "presets.yaml")
    found = run["metrics"]
    last = run["computed_on"]
    vocab_size = presets["tokenizers"][params["tokenizer"]["name"]]["vocab_size"]
    embedding = vocab_size * presets["models"][params["model"]["name"]]["d_model"]
    text = (
        f"With {last['threads']} CPU threads ({last['instruction_set']}, {last['dtype']}), training a model of "
        f"{found['parameters'] / 1e6:.1f} million parameters, {embedding / 1e6:.1f} million of them in the embedding, "
        f"took {found['train_seconds'] / 60:.1f} minutes and ended at **{found['bits_per_byte']:.3f} bits per byte**."
    )
    return paragraph(text)


def first_hour() -> str:
    """README: how long it takes to install and run the default, its experiment, and the tutorial."""
    seconds = read("first_hour")["seconds"]
    commands = list(seconds)
    setup = commands[: commands.index("make") + 1]
    (first,) = [number for number, command in enumerate(commands) if command.startswith("dvc exp run")]
    minutes, rest = divmod(round(sum(seconds[command] for command in setup)), 60)
    of_experiment = sum(seconds[command] for command in commands[first:]) / 60
    of_tutorial = sum(read("tutorial")["seconds"].values()) / 60
    return paragraph(
        f"From clone to the end of `make`, it took {minutes}:{rest:02} minutes on {machine('first_hour')}, with a "
        f"package mirror nearby; the experiment, down to `make back`, {of_experiment:.1f} minutes more, and the "
        f"commands of the [tutorial](docs/tutorial.md) {of_tutorial:.0f}."
    )


def verdict() -> str:
    """README: the last lines that `make` prints."""
    return output(read("default")["verdict"])


def sample() -> str:
    """README: what the default model writes."""
    return output(read("default")["generated"]["text"].rstrip())


def shortened(printed: str) -> str:
    """Return what `python src compare` prints, without the names of the files."""
    lines = [line for line in printed.splitlines() if not line.startswith("written: ")]
    return "\n".join(lines)


def experiment(name: str) -> str:
    """README and docs/experiments.md: what `python src compare` prints after an experiment, shortened."""
    found = read(name)
    where = f"On {found['hardware']['cores']} cores of {found['hardware']['processor']}, it"
    taken = f"{where} took {found['seconds'] / 60:.1f} minutes. `compare` prints, shortened:"
    return f"{taken}\n\n{output(shortened(found['printed']['python src compare main workspace']))}"


def seeds() -> str:
    """README: how far the default runs of several seeds are apart, beside the difference of its experiment."""
    runs = [read("default"), *(read(f"seed_{seed}") for seed in OTHER_SEEDS)]
    values = [run["metrics"]["bits_per_byte"] for run in runs]
    deviation = statistics.stdev(values)
    of_two_runs = 2**0.5 * deviation
    report = read("first_experiment")["printed"]["python src compare main workspace"]
    difference = float(re.search(r": ([+-][\d.]+) bits per byte", report)[1])
    shown = ", ".join(f"{value:.3f}" for value in values)
    text = (
        f"The default with the seeds 1 to {len(values)} ended at {shown} bits per byte. Their standard deviation is "
        f"{deviation:.3f}, or {of_two_runs:.3f} for the difference of two runs. The difference above is "
        f"{difference / of_two_runs:.0f} times as large."
    )
    return paragraph(text)


def detectable() -> str:
    """docs/ablations.md: the difference that a number of seeds would show, with the noise of the default."""
    runs = [read("default"), *(read(f"seed_{seed}") for seed in OTHER_SEEDS)]
    deviation = statistics.stdev(run["metrics"]["bits_per_byte"] for run in runs)
    text = (
        f"**How many seeds?** The default has a standard deviation of {deviation:.3f} bits per byte over {len(runs)} "
        f"seeds. With this noise, independent runs show a true difference of "
        f"{shown(deviation, len(runs) - 1, 'seeds of each side')} in about {100 * POWER:g} % of cases. "
    )
    return paragraph(text + by_pairs() + "`python src noise` computes this for your runs.")


def by_pairs() -> str:
    """Return the spread of pairs of equal seeds for each small change, and what pairs would show at the median."""
    found = read("pairs")
    pairs = found["pairs"]
    count = len(found["default"])
    spreads = []
    for name, each in pairs.items():
        spreads.append(f"{each['sd_of_pairs']:.4f} instead of {each['sd_unpaired']:.4f} with `{name}`")
    median = statistics.median(each["sd_of_pairs"] for each in pairs.values())
    differences = shown(median, count - 1, "pairs", num_means=1)
    return (
        f"If both sides have the same {count} seeds, the standard deviation of the difference is "
        f"{', '.join(spreads)}. Then pairs show {differences}. "
    )


def shown(deviation: float, degrees_of_freedom: int, unit: str, num_means: int = 2) -> str:
    """Return the differences that some numbers of runs of each side would show."""
    differences = {}
    for count in (2, 3, 5, 10):
        differences[count] = detectable_by_runs(deviation, degrees_of_freedom, count, num_means=num_means)
    return by_count(differences, unit)


def default_data() -> str:
    """docs/files.md: the size of the default corpus and of the default model's weights."""
    run = read("default")
    rows = []
    for split in ("train", "validation"):
        counts = run["audit"][split]
        size = f"{2 * counts['tokens'] / 1e6:.1f} MB"
        density = f"{counts['bytes_per_token']:.2f} bytes"
        text = f"{counts['utf8_bytes']:,} bytes"
        tokens = f"{counts['tokens']:,}"
        rows.append((f"`{split}.bin`", f"{counts['documents']:,}", text, tokens, density, size))
    head = "file | documents | text | tokens | text per token | size"
    parameters = run["metrics"]["parameters"]
    weights = f"{parameters:,} parameters, so each file of weights takes {4e-6 * parameters:.1f} MB."
    return f"{table(head, rows)}\n\nThe default model has {weights}"


def default_evaluation() -> str:
    """docs/metrics.md: how uncertain and how contaminated the result of the default run is."""
    run = read("default")
    found = run["metrics"]
    evaluation = run["evaluation"]
    clean = run["evaluation"]["clean"]
    overlapping = found["bits_per_byte"]
    apart = evaluation["bits_per_byte_non_overlapping"]
    contaminated = f"{100 * found['contaminated_fraction']:.0f} %"
    text = (
        f"The default run, for example, reaches {overlapping:.3f} bits per byte with overlapping windows and "
        f"{apart:.3f} with non-overlapping windows. Its validation text has {evaluation['documents']} documents of "
        f"very unequal length, so the standard error is {found['bpb_se']:.2f}. {contaminated} of its validation "
        f"tokens are part of a 13-gram that also occurs in the training text. On the {clean['documents']} documents "
        f"with less than a fifth of such tokens, the same model reaches {clean['bits_per_byte']:.3f} bits per byte."
    )
    return paragraph(text)


WORLDS = {
    "small_changes": "small changes: equal seeds correlate by 0.97",
    "all_changes": "60 % such, 20 % with 0.8, 20 % without",
    "all_changes_1_percent_wide": "and 1 % with ten times the spread",
    "all_changes_3_percent_wide": "and 3 %",
    "all_changes_wide": "and 10 %",
    "all_changes_three_times_wide": "and 10 % with three times the spread",
    "all_changes_heavy_tails": "heavy tails (Student's t, 3 degrees of freedom)",
    "all_changes_skewed": "skewed: a few lucky seeds",
    "all_changes_unlucky_base": "all seeds of the first base unlucky by 0.5",
    "unpaired": "no change correlates",
    "unpaired_wide": "none, and 10 % with ten times the spread",
}


def judge() -> str:
    """docs/search.md: what is kept in nights without and with real gains, in each world."""
    found = read("judge")
    rows = []
    for world, name in WORLDS.items():
        rows.append((name, *figures_of_nights(found["judge"][world])))
    rows.append(("lowest loss so far, small changes", *figures_of_nights(found["greedy"]["small_changes"])))
    gains = f"found of {found['gains']} gains of 2 (of 1)"
    head = f"changes | nights without gains that keep a false one | {gains} | runs without gains, with those of 2"
    intro = (
        f"{found['nights']:,} simulated nights of {found['tries']} changes of each kind; gains in standard deviations "
    )
    intro += "over seeds ([judge.json](../benchmarks/results/judge.json)):"
    return f"{paragraph(intro)}\n\n{table(head, rows)}"


def judge_nights() -> str:
    """README: nights without gains that keep a false change, by `judge` and by the lowest loss."""
    found = read("judge")
    lowest = false_nights(found["greedy"]["small_changes"])
    small = false_nights(found["judge"]["small_changes"])
    large = false_nights(found["judge"]["all_changes"])
    nights = f"{found['nights']:,} simulated nights of {found['tries']} changes that do nothing"
    text = (
        f'In {nights}, the rule "keep the lowest loss so far" kept one in {lowest} of the nights. `judge` did in '
        f"{small} if all changes are small, and in {large} with large ones among them "
        f"([more](docs/search.md#how-it-decides))."
    )
    return paragraph(text)


def false_nights(world: dict) -> str:
    """Return the share of nights without gains in which a false change was kept."""
    return f"{100 * world['no_gains']['nights_with_a_false_one']:.1f} %"


def figures_of_nights(world: dict) -> tuple[str, str, str]:
    """Return the columns of a world: false nights, gains found, runs."""
    without = world["no_gains"]
    large = world["gains_of_2_sd"]
    kept = f"{large['kept_gains']:.1f}"
    if small := world.get("gains_of_1_sd"):
        kept += f" ({small['kept_gains']:.1f})"
    return false_nights(world), kept, f"{without['runs']:.0f}, {large['runs']:.0f}"


def graph() -> str:
    """README: the stages and what each one reads from others, without what it also gets by way of another stage."""
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    writers = {}  # path → stage
    for name, stage in stages.items():
        for path in paths_of(stage, "outs", "metrics", "plots"):
            writers[path] = name
    reads = {name: {writers[dep] for dep in stage["deps"] if dep in writers} for name, stage in stages.items()}

    lines = []
    for name in stages:
        by_way_of_others = set().union(*(ancestors(each, reads) for each in reads[name]))
        direct = reads[name] - by_way_of_others
        lines += [f"    {each} --> {name}" for each in stages if each in direct]
    return "\n".join(["```mermaid", "flowchart LR", *lines, "```"])


def paths_of(stage: dict, *kinds: str) -> list[str]:
    """Return the paths in these lists of a stage, where an entry is a path or a mapping from it to its options."""
    entries = [entry for kind in kinds for entry in stage.get(kind, [])]
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def ancestors(name: str, reads: dict[str, set[str]]) -> set[str]:
    """Return the stages whose outputs a stage reads, directly or not."""
    return reads[name].union(*(ancestors(each, reads) for each in reads[name]))
