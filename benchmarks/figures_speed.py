"""The figures of docs/benchmarks.md, docs/export.md, docs/distributed.md and docs/data.md about time and memory."""

import large_corpus
import summarize
from harness import summary
from recorded import RESULTS, machine, read


def all_speeds() -> str:
    """docs/benchmarks.md: every comparison."""
    return f"Measured on {machine('tokenizing')}.\n\n{summarize.table(summarize.all_rows())}"


def tokenizing_memory() -> str:
    """docs/benchmarks.md: the memory of a process that tokenizes."""
    sizes = read("tokenizing")["memory_of_ours"]
    listed = ", ".join(f"{size['peak_mb_of_a_process']} MB for {size['text_mb']:,.0f} MB of text" for size in sizes)
    return f"A process that tokenizes needs {listed}."


def step() -> str:
    """docs/benchmarks.md: a training step beside the peak of the processor, with and without AMX."""
    rows = [
        "| step of 30 M parameters | with AMX | of bfloat16 peak | without AMX | of bfloat16 peak |",
        "|---|---|---|---|---|",
    ]
    found = [read(name)["questions"]["30m"] for name in ("train_step", "train_step_without_amx")]
    for case in ("ours", "ours, compiled", "ours, float32", "the matrix products of ours alone"):
        rates = [(each["tokens_per_s"][case], each["share_of_bf16_peak"][case]["median"]) for each in found]
        label = summarize.CASES.get(case, case)
        rows.append(f"| {label} | {' | '.join(f'{rate:,.0f} tokens/s | {share:.0%}' for rate, share in rates)} |")
    return "\n".join(rows)


def busy_cores() -> str:
    """docs/benchmarks.md: a training step beside processes that never sleep."""
    idle, one, two = (read("busy_cores")["busy_processes"][count] for count in "012")
    rows = ["| threads | idle | beside one busy process | beside two |", "|---|---|---|---|"]
    for setting in idle:
        cells = [each[setting] for each in (idle, one, two)]
        times = [f"{1e3 * cell['median_s']:,.0f} ms ({cell['times_idle']:.1f})" for cell in cells]
        rows.append(f"| {setting} | {' | '.join(times)} |")
    where = f"Measured on {machine('busy_cores')}; in brackets, multiples of the idle step with free cores."
    return "\n".join([where, "", *rows])


def memory() -> str:
    """docs/benchmarks.md: the memory of a large vocabulary."""
    kept, given_back = read("train_step")["questions"]["memory"]["runs"]
    return (
        f"Gemma 3 270M with its own vocabulary of {kept['vocab_size']:,} entries, one sequence of 256 tokens at a "
        f"time, trained within {kept['peak_rss_gib']:.1f} GiB in {kept['seconds']:.0f} seconds for "
        f"{kept['steps']} steps. With `keep_freed_memory: false` in `runtime.yaml` it took "
        f"{given_back['peak_rss_gib']:.1f} GiB and {given_back['seconds']:.0f} seconds."
    )


def time_to_loss() -> str:
    """docs/benchmarks.md: bits per byte after each budget, over the seeds."""
    found = read("time_to_loss")
    rows = ["| seconds of training | ours, bits per byte | nanoGPT's recipe for a CPU |", "|---|---|---|"]
    for budget in sorted({*found["budgets_s"], found["reference_s"]}):
        ours = [p["bits_per_byte"] for run in found["runs"] for p in run["curves"]["ours"] if p["budget_s"] == budget]
        points = [[p for p in run["curves"]["reference"] if p["seconds"] <= 1.02 * budget] for run in found["runs"]]
        theirs = [curve[-1]["bits_per_byte"] for curve in points if curve and curve[-1]["seconds"] >= 0.9 * budget]
        rows.append(f"| {budget:.0f} | {spread(ours) if ours else '–'} | {spread(theirs) if theirs else '–'} |")
    where = (
        f"Measured on {machine('time_to_loss')}, {len(found['runs'])} seeds each; the smallest and the largest result."
    )
    return "\n".join([where, "", *rows, "", reached(found["runs"])])


def reached(runs: list[dict]) -> str:
    """Return a sentence on how long ours took to the last loss of the reference."""
    seconds = [run["seconds_to_target"] for run in runs if run["seconds_to_target"]["ours"]]
    missed = f" {len(runs) - len(seconds)} of {len(runs)} seeds did not reach it." if len(seconds) < len(runs) else ""
    if not seconds:
        return missed.strip()
    times = summary([run["reference"] / run["ours"] for run in seconds])
    longest = max(run["ours"] for run in seconds)
    factor = f"{times['median']:.1f} ({times['min']:.1f} to {times['max']:.1f}) times as fast"
    return f"Ours has nanoGPT's last loss within {longest:.0f} s: {factor}.{missed}"


def spread(values: list[float]) -> str:
    """Return the smallest and the largest value: `1.662 to 1.674`."""
    return f"{min(values):.3f} to {max(values):.3f}"


def records() -> str:
    """docs/benchmarks.md: the recipes of speedrun.yaml at equal seconds, on each kind of machine."""
    return "\n\n".join(table_of_records(read(path.stem)) for path in sorted(RESULTS.glob("speedrun_*.json")))


def table_of_records(found: dict) -> str:
    """Return a row for each recipe: its tokens, its losses, and how they differ from those of the recipe before.

    A recipe that was trained again for those that were appended to it has a row for each day.
    """
    head = f"| recipe | tokens | seconds | bits per byte, {len(found['seeds'])} seeds | change | p |"
    rows, name = [head, "|---|---|---|---|---|---|"], ""
    for row in found["rows"]:
        if again := row.get("runs_of_recipe_before"):
            rows.append(row_of_record(f"{name}, on a later day", again, {}))
        name = row["recipe"]
        rows.append(row_of_record(name, row["runs"], row.get("change", {})))
    return "\n".join([f"Measured on {found['machine']}.", "", *rows])


def row_of_record(name: str, runs: list[dict], change: dict) -> str:
    """Return a row of that table."""
    value, p_value, seconds = change.get("value"), change.get("p_value"), [run["seconds"] for run in runs]
    cells = (
        name, f"{runs[0]['tokens']:,}", f"{min(seconds):.0f} to {max(seconds):.0f}",
        spread([run["bits_per_byte"] for run in runs]), "–" if value is None else f"{value:+.3f}",
        "–" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def cross_entropy() -> str:
    """docs/benchmarks.md: the loss of the head beside torch's own."""
    found = read("cross_entropy")
    names = list(next(iter(found["shapes"].values()))["milliseconds"])
    rows = [f"| tokens × width × vocabulary | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for shape in found["shapes"].values():
        times = [f"{shape['milliseconds'][name]['median']:,.0f} ms" for name in names]
        rows.append(f"| {' × '.join(f'{n:,}' for n in shape['shape'])} | {' | '.join(times)} |")
    return "\n".join([f"Measured on {machine('cross_entropy')}, in bfloat16.", "", *rows])


def generation() -> str:
    """docs/export.md: what the key-value cache is worth."""
    found = read("generate")
    return f"The key-value cache makes this {found['times_longer_than_ours']['not']['median']:.1f} times faster."


def large_corpora() -> str:
    """docs/distributed.md: estimates for large corpora and the rates that they use."""
    found = read("large_corpus")
    rates = {name: rate / 1e9 for name, rate in found["rates"].items()}
    return (
        f"The estimates use rates measured on {machine('large_corpus')}: {1e3 * rates['tokenize']:.0f} MB of text per "
        f"second and process, SHA-256 at {rates['sha256']:.1f} GB/s and MD5 at {rates['md5']:.1f} GB/s per core, "
        f"{found['bytes_per_token']} bytes of text and {large_corpus.TOKEN_BYTES} bytes of file per token.\n\n"
        "| text | token file | tokenizing | joining | check on opening | DVC's MD5 | memory, all ranks |\n"
        f"|---|---|---|---|---|---|---|\n{large_corpus.table(found['estimates'])}"
    )


def read_ahead() -> str:
    """docs/distributed.md: a batch from a file larger than memory."""
    found = read("large_corpus")["batches"]["1 TB"]
    return (
        f"From a file of 1 TB, a batch takes {found['batch_ms']['median']:.1f} ms; "
        f"with read-ahead it would take {found['batch_with_read_ahead_ms']['median']:.0f} ms."
    )


def dvc_overhead() -> str:
    """docs/benchmarks.md: the cost of DVC itself."""
    found = read("dvc_overhead")
    no_op = summary(found["no_op"]["seconds"]["large"])["median"]
    return (
        f"`dvc repro` with nothing to do takes {no_op:.1f} seconds; an output of "
        f"{found['size_bytes'] / 1e9:.1f} GB adds {1e3 * found['no_op']['extra_s']['median']:.0f} ms to it. `dvc add` "
        f"of that file takes {found['add']['times_of_md5']['median']:.1f} times as long as its MD5."
    )


def ddp_overlap() -> str:
    """docs/distributed.md: the gain from averaging gradients during the backward pass."""
    if not (RESULTS / "ddp_overlap.json").exists():
        return ""
    found = read("ddp_overlap")["times_longer_than_ours"]
    during, without = (summarize.ratio_in_words(found[way]) for way in ("during the backward pass", "not averaged"))
    return (
        f"With two ranks on {machine('ddp_overlap')} (gloo), averaging during the backward pass took {during} times as "
        f"long as after it. Without any average, it took {without} times as long."
    )


def near_duplicates() -> str:
    """docs/data.md: how many planted copies the near-duplicate rule finds."""
    found = read("near_duplicates")
    corpora = found["planted"]
    thresholds = list(next(iter(found["unchanged_dropped"].values())))
    rows = [f"| change of each document | similarity | {' | '.join(f'found at {t}' for t in thresholds)} |"]
    rows.append("|---|---|" + "---|" * len(thresholds))
    for edit in next(iter(corpora.values())):
        cells = [", ".join(f"{corpus[edit]['similarity']:.2f}" for corpus in corpora.values())]
        cells += [", ".join(percent(corpus[edit]["recall"][t]) for corpus in corpora.values()) for t in thresholds]
        rows.append(f"| {edit} | {' | '.join(cells)} |")
    unchanged = [", ".join(percent(each[t], 1) for each in found["unchanged_dropped"].values()) for t in thresholds]
    rows.append(f"| none: originals that are dropped | – | {' | '.join(unchanged)} |")
    named = " and ".join(f"{count:,} {name}" for name, count in found["documents"].items())
    threshold = str(found["parameters"]["threshold"])
    edited = [corpus["1 % of the words changed"] for corpus in corpora.values()]
    precision = " and ".join(percent(each["precision"][threshold], 1) for each in edited)
    return (
        f"{named}, each with a changed copy. The first figure in a cell is that for {next(iter(corpora))}:\n\n"
        + "\n".join(rows)
        + f"\n\nOf the documents that a threshold of {threshold} drops where 1 % of the words are changed, {precision} "
        "are these copies, or really as similar as that to the one that stays."
    )


def percent(fraction: float, digits: int = 0) -> str:
    """Return a fraction as a percentage: `98 %`."""
    return f"{100 * fraction:.{digits}f} %"


def selection() -> str:
    """docs/data.md: the speed of each rule, what a gigabyte takes, and the estimate for 100 GB."""
    found = read("near_duplicates")
    small, large = found["stages"]
    gigabytes, documents = large["utf8_bytes"] / 1e9, large["documents"]
    more = {name: large[name] - small[name] for name in ("documents", "peak_rss_gib")}
    bytes_per_document = more["peak_rss_gib"] * 2**30 / more["documents"]
    hours = 100 / gigabytes * large["cpu_seconds"] / 3600
    rows = ["| rule | MB of text per second |", "|---|---|"]
    rows += [f"| `{rule}` | {rate:,.0f} |" for rule, rate in found["megabytes_per_cpu_second"].items()]
    return "\n".join(rows) + (
        f"\n\nOn one core, `filtered` took {large['cpu_seconds']:.0f} seconds and {large['peak_rss_gib']:.2f} GiB of "
        f"memory for {gigabytes:.1f} GB of text in {documents:,} documents. Each document adds "
        f"{bytes_per_document:.0f} bytes, {4 * found['parameters']['num_permutations']} of them for its signature. So "
        f"100 GB in {100 / gigabytes * documents / 1e6:.0f} million such documents would take about {hours:.1f} hours "
        f"and {100 / gigabytes * documents * bytes_per_document / 1e9:.0f} GB."
    )


def large_audit() -> str:
    """docs/data.md: what the audit of many tiny documents takes."""
    found = read("large_audit")
    measured, on_paper = found["measured"], found["on_paper"]
    size = measured["utf8_bytes"] / measured["documents"]
    mapped = measured["mapped_bytes"] / 1e6
    return (
        f"The audit of {measured['documents'] / 1e6:.0f} million documents of {size:.0f} bytes took "
        f"{measured['cpu_seconds'] / 60:.1f} minutes of a core, {measured['largest_disk_bytes'] / 1e6:.0f} MB of disk "
        f"and {measured['peak_resident_bytes'] / 1e6:.0f} MB of memory. {mapped:.0f} MB of this are pages of the token "
        f"files, which the system takes back if it needs them. {on_paper['documents'] / 1e6:.0f} million would need "
        f"{on_paper['largest_disk_bytes'] / 1e9:.1f} GB of disk and {on_paper['own_memory_bytes'] / 1e9:.1f} GB of "
        "memory beside such pages. The training tokens are read once for every 16.8 million validation tokens."
    )


FRAGMENTS = {
    "all-speeds": all_speeds, "tokenizing-memory": tokenizing_memory, "step": step, "memory": memory,
    "busy-cores": busy_cores, "time-to-loss": time_to_loss, "records": records,
    "cross-entropy": cross_entropy, "dvc-overhead": dvc_overhead, "generation": generation,
    "large-corpora": large_corpora, "read-ahead": read_ahead, "near-duplicates": near_duplicates,
    "selection": selection, "large-audit": large_audit, "ddp-overlap": ddp_overlap,
}  # fmt: skip
