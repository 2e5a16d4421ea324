"""Write the figures that README.md, docs/ and data/README.md quote, from committed results alone: `make figures`.

    PYTHONPATH=src:benchmarks python benchmarks/pages.py [--check]

A page marks each place with `<!-- figures:NAME -->` and `<!-- end -->`, each on a line of its own. The lines between
them are what FRAGMENTS[NAME] returns. `--check` writes nothing and ends with 1 if a page is not up to date.
"""

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import exact_order
import reference
from harness import RESULTS, ROOT, ratios, summary
from lm.core.files import write_text
from lm.core.params import read_yaml
from tools.common.statistics import POWER, detectable_by_runs

ESCAPED = "\\|"
OTHER_SEEDS = (2, 3, 4, 5)
RTX_4090_TFLOPS = 165  # the peak in bfloat16 of NVIDIA's data sheet, as in docs/exact.md
MARKED = re.compile(r"(^<!-- figures:([\w-]+) -->\n).*?(^<!-- end -->$)", re.M | re.S)


def read(name: str) -> dict:
    """Read benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: str, rows: list[tuple]) -> str:
    """Return a Markdown table; `head` has its columns, divided by `|`."""
    lines = [f"| {head} |", f"|{'---|' * (head.count('|') + 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell).replace('|', ESCAPED) for cell in row)} |" for row in rows)])


def paragraph(text: str) -> str:
    """Return a text in lines of 120 characters."""
    return textwrap.fill(text, 120, break_on_hyphens=False)


def machine(name: str) -> str:
    """Return the machine of a benchmark: processor, cores and memory."""
    found = read(name)["hardware"]
    return f"{found['cores']} cores of an {found['processor']}, {found['memory_gib']:.0f} GiB of memory"


def computed(run: dict) -> str:
    """Return what a recorded run was computed on: `exact float32 on 2 threads, AVX2`."""
    last = run["computed_on"]
    numerics = run["segments"][-1].get("numerics", "fast")
    code = last.get("instruction_set") or last["device"]
    words = f"{last['dtype']} on {threads(last)}, {code}"
    return f"exact {words}" if numerics == "exact" else words


# Recorded runs of the pipeline.


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


def scale() -> str:
    """README: the default's bits per byte beside those of xz and of an n-gram model, on the same text."""
    found = read("baselines")
    run = read("default")
    order, ngram = min(found["ngram_bits_per_byte"].items(), key=lambda item: item[1])
    xz = found["xz_bits_per_byte"]
    return paragraph(
        f"A scale for the {run['metrics']['bits_per_byte']:.3f}: an n-gram model of the training text, with {order} "
        f"bytes of context, has {ngram:.3f} bits per byte on the same text; xz has {xz['alone']:.3f}, or "
        f"{xz['after_the_training_text']:.3f} after the training text "
        f"([what a good score is](docs/metrics.md#what-a-good-score-is))."
    )


def verdict() -> str:
    """README: the last lines that `make` prints."""
    return output(read("default")["verdict"])


def sample() -> str:
    """README: what the default model writes."""
    return output(read("default")["generated"]["text"].rstrip())


def shortened(printed: str) -> str:
    """Return what `python src compare` prints, without the names of the files."""
    if printed.startswith("# "):  # recorded when it printed the whole report
        return shortened_report(printed)
    lines = [line for line in printed.splitlines() if not line.startswith("written: ")]
    return "\n".join(lines)


def shortened_report(report: str) -> str:
    """Return the lines of a report that say whether two runs differ."""
    heading, noise, said = report[report.index("\n## ") + 1 :].split("\n\n")[:3]
    noise = [line for line in noise.splitlines()[:3] if not line.startswith("|-")]
    shown = ("- Documents:", "- Seeds:")
    said = [line for line in said.splitlines() if line.startswith(shown) or "differs" in line]
    return "\n".join([heading, *noise, *said])


def experiment(name: str) -> str:
    """README and docs/experiments.md: what `python src compare` prints after an experiment, shortened."""
    found = read(name)
    where = f"On {found['hardware']['cores']} cores of {found['hardware']['processor']}, it"
    taken = f"{where} took {found['seconds'] / 60:.1f} minutes. `compare` prints, shortened:"
    return f"{taken}\n\n{output(shortened(found['printed']['python src compare main workspace']))}"


def checkpoints() -> str:
    """docs/experiments.md: a run whose checkpoints were deleted and rebuilt."""
    found = read("checkpoints")
    count = len(found["steps"])
    megabytes = count * found["bytes_of_each"] / 1e6
    total = sum(found["seconds"])
    return paragraph(
        f"On {machine('checkpoints')}, the default was trained with {count} validations, and all its checkpoints were "
        f"deleted. `verify --retrain` rebuilt that of each validation, one after the other, with the recorded digest. "
        f"So these {count} files of {megabytes:.0f} MB in all need not be stored. To rebuild them took "
        f"{max(found['seconds']):.0f} seconds each, {total:.0f} in all. The training had taken "
        f"{found['train_seconds']:.0f} seconds."
    )


def migration() -> str:
    """docs/exact.md: the parts of a run that moved from one processor to another, and what it ended with."""
    found = read("migration")
    parts = [f"steps {part['from_step']} to {part['to_step']} on {part['name']}" for part in found["parts"]]
    sha256 = found["migrated_sha256"]["data/models/best_model_params.pt"]
    assert found["migrated_sha256"] == found["undisturbed_sha256"]
    return paragraph(
        f"This run of {found['parts'][-1]['to_step']} steps of the default model was killed three times: "
        f"{'; '.join(parts)}. Its weights have the SHA-256 of the undisturbed run (`{sha256[:16]}…`). Its curves, "
        f"with the digest of the state at every validation, have the same bytes too."
    )


def output(text: str) -> str:
    """Return what a command printed as a block."""
    lines = [line.rstrip() for line in text.strip("\n").rstrip().splitlines()]
    return "\n".join(["```text output", *lines, "```"])


# docs/tutorial.md.


def tutorial_printed(beginning: str) -> str:
    """Return what the command of docs/tutorial.md that begins so has printed."""
    (text,) = [text for command, text in read("tutorial")["printed"].items() if command.startswith(beginning)]
    return text


def tutorial_lines(beginning: str, pattern: str) -> str:
    """Return of that the lines that match a pattern."""
    lines = [line for line in tutorial_printed(beginning).splitlines() if re.search(pattern, line)]
    return output("\n".join(lines))


def tutorial_first(beginning: str, count: int) -> str:
    """Return its first lines."""
    lines = tutorial_printed(beginning).splitlines()
    return output("\n".join([*lines[:count], *(["…"] if len(lines) > count else [])]))


def tutorial_machine() -> str:
    """Where the commands ran."""
    found = read("tutorial")
    minutes = sum(found["seconds"].values()) / 60
    text = (
        f"What the commands print is shown shortened, on {machine('tutorial')}. There they took {minutes:.0f} minutes "
        f"in all. They read the standard library of Python {found['python']}. Another version has another text, and "
        f"gives other numbers."
    )
    return paragraph(text)


def tutorial_trace() -> str:
    """What the sample has in common with the training text in all, and its longest span."""
    text = tutorial_printed("python src trace")
    span = text[text.index("\n1. ") :].strip().split("\n\n")[0]
    return output(f"{text.splitlines()[0]}\n…\n{span}")


def tutorial_transformers() -> str:
    """The text that transformers generates, without what it prints while it loads the model."""
    text = tutorial_printed("import torch")
    return output(text[text.index("class Reader") :])


def tutorial_tuned() -> str:
    """The validation losses of fine-tuning, and a text of the tuned model."""
    losses = tutorial_printed("cut -d")
    written = tutorial_printed('python src generate "To train')
    return output(f"{losses}\n{written}")


TUTORIAL: dict[str, Callable[[], str]] = {
    "tutorial-machine": tutorial_machine,
    "tutorial-use": lambda: output(tutorial_printed("python src use")),
    "tutorial-train": lambda: tutorial_lines(
        "dvc exp run -n base",
        r"^(train|validation): |^data/tokenizer|^(device|parameters|steps|memory) |^step (0|500) of",
    ),
    "tutorial-explain": lambda: tutorial_first("python src explain", 10),
    "tutorial-trace": tutorial_trace,
    "tutorial-compare": lambda: output(shortened(tutorial_printed("python src compare"))),
    "tutorial-table": lambda: output(tutorial_printed("dvc exp show")),
    "tutorial-generate": lambda: output(tutorial_printed('python src generate "def main')),
    "tutorial-transformers": tutorial_transformers,
    "tutorial-tuned": tutorial_tuned,
}  # fmt: skip


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
    counts = (2, 3, 5, 10)
    shown = [f"{detectable_by_runs(deviation, len(runs) - 1, count):.3f}" for count in counts]
    others = ", ".join(f"{count} show {value}" for count, value in zip(counts[1:], shown[1:], strict=True))
    return paragraph(
        f"**How many seeds?** The default has a standard deviation of {deviation:.3f} bits per byte over {len(runs)} "
        f"seeds. With this noise, {counts[0]} seeds of each side show a true difference of {shown[0]} in about "
        f"{100 * POWER:g} % of cases, {others}. `python src noise` computes this for your runs."
    )


def baselines() -> str:
    """docs/metrics.md: the default's bits per byte beside those of an n-gram model and of xz, on the same text."""
    found = read("baselines")
    run = read("default")
    order, ngram = min(found["ngram_bits_per_byte"].items(), key=lambda item: item[1])
    xz = found["xz_bits_per_byte"]
    rows = [
        ("every byte equally likely", "8.000"),
        (f"an n-gram model of the training text, at most {order} bytes of context", f"{ngram:.3f}"),
        ("xz, of the validation text alone", f"{xz['alone']:.3f}"),
        ("the default model, at most 256 tokens of context", f"{run['metrics']['bits_per_byte']:.3f}"),
        ("xz, of the validation text after the training text", f"{xz['after_the_training_text']:.3f}"),
    ]
    return table("the default's validation text under | bits per byte", rows)


def compressed() -> str:
    """docs/metrics.md: the size of the compressed validation file beside the loss of `eval`."""
    found = read("compress")
    text = (
        f"The validation text of the default run has {found['utf8_bytes']:,} bytes, and its token file is compressed "
        f"to {found['file_bytes']:,}. These are {found['bits_per_byte']:.4f} bits per byte, with the header of the "
        f"file; `eval` reports {found['eval_bits_per_byte']:.4f}. {threads(found['compress']).capitalize()} compressed "
        f"it, and {threads(found['decompress'])} decompressed it to the same bytes."
    )
    return paragraph(text)


def threads(run: dict) -> str:
    """Return the number of threads in words."""
    return f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"


def graph() -> str:
    """README: the stages and what each one reads from others, without what it also gets by way of another stage."""
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    writers = {out: name for name, stage in stages.items() for out in paths_of(stage, "outs", "metrics", "plots")}
    reads = {name: {writers[dep] for dep in stage["deps"] if dep in writers} for name, stage in stages.items()}
    before = {name: ancestors(name, reads) for name in stages}
    lines = []
    for name in stages:
        by_way_of_others = set().union(*(before[each] for each in reads[name]))
        lines += [f"    {each} --> {name}" for each in stages if each in reads[name] - by_way_of_others]
    return "\n".join(["```mermaid", "flowchart LR", *lines, "```"])


def paths_of(stage: dict, *kinds: str) -> list[str]:
    """Return the paths in these lists of a stage, where an entry is a path or a mapping from it to its options."""
    entries = [entry for kind in kinds for entry in stage.get(kind, [])]
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def ancestors(name: str, reads: dict[str, set[str]]) -> set[str]:
    """Return the stages whose outputs a stage reads, directly or not."""
    return reads[name].union(*(ancestors(each, reads) for each in reads[name]))


def results() -> str:
    """docs/benchmarks.md: three measurements, each beside the same work done in another way."""
    default, fast = (read(name) for name in ("default", "fast"))
    in_words = [
        f"{run['metrics']['bits_per_byte']:.3f} bits per byte, {run['metrics']['train_seconds']:.0f} s of training"
        for run in (default, fast)
    ]
    tokens = default["metrics"]["tokens_seen"] / 1e6
    small, _, large = steps()[:3]
    theirs = read("train_step")["versions"]["transformers"]
    gigatoken = tokenizing()[0]
    rows = [
        (
            f"the default run, {tokens:.2f} M tokens of C++ headers",
            f"{in_words[0]} ({computed(default)})",
            f"{in_words[1]} ({computed(fast)})",
        ),
        (
            "a training step in `fast` numerics (commit 556ce64, two cores of a Xeon with AMX)",
            f"{small.speed_up['median']:.1f} times as fast with 30 M parameters in float32, "
            f"{large.speed_up['median']:.2f} times with 132 M in bfloat16",
            f"transformers {theirs} in the same number format",
        ),
        (
            gigatoken.task.replace("tokenize", "tokenizing"),
            f"{gigatoken.speed_up['median']:.1f} times as fast, by the library gigatoken",
            gigatoken.baseline.rpartition(":")[0],
        ),
    ]
    return table("task | ReproLM | compared with", rows)


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
        median, least, most = (f"{times[key]:.2f}" for key in ("median", "min", "max"))
        rows.append((f"time of a {name}, as a multiple", f"{median} ({least} to {most})"))
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


# Speed.


class Row(NamedTuple):
    """One comparison: the task, ours, a baseline, and the seconds of the baseline divided by ours."""

    task: str
    ours: str
    baseline: str
    speed_up: dict[str, float]  # median, min, max over the rounds


def judge() -> str:
    """docs/search.md: what is kept in nights without and with real gains, by each rule."""
    found = read("judge")
    names = {
        "judge": "`judge`",
        "alpha_spending": "the same, by alpha spending",
        "greedy": "keep the lowest loss so far",
    }
    rows = []
    for key, name in names.items():
        without = found[key]["no_gains"]
        with_gains = found[key]["with_gains"]
        false_nights = f"{100 * without['nights_with_a_false_one']:.1f} %"
        found_gains = f"{with_gains['kept_gains']:.1f} of {found['gains']}"
        false_share = f"{100 * with_gains['false_share_of_kept']:.1f} %"
        runs = f"{without['runs']:.0f}, {with_gains['runs']:.0f}"
        rows.append((name, false_nights, found_gains, false_share, runs))
    gains = f"{found['gains']} gains of {found['gain_in_standard_deviations']:g} standard deviations"
    head = "rule | nights without gains that keep a false one | "
    head += f"found of {gains} | false among those kept then | runs without gains, with them"
    nights = found["judge"]["no_gains"]["nights"]
    intro = f"{nights:,} simulated nights of {found['tries']} changes of each kind, judged with {found['first_seeds']}"
    intro += f" to {found['most_seeds']} seeds of each side ([judge.json](../benchmarks/results/judge.json)):"
    return f"{paragraph(intro)}\n\n{table(head, rows)}"


def judge_nights() -> str:
    """README: how often nights without gains keep a change, by `judge` and by keeping the lowest loss."""
    found = read("judge")
    by_judge, by_loss = (found[rule]["no_gains"]["nights_with_a_false_one"] for rule in ("judge", "greedy"))
    return paragraph(
        f"In {found['judge']['no_gains']['nights']:,} simulated nights of {found['tries']} changes that do nothing, "
        f'the rule "keep the lowest loss so far" kept one in {100 * by_loss:.1f} % of the nights, `judge` in '
        f"{100 * by_judge:.1f} % ([more](docs/search.md#how-it-decides))."
    )


def tokenizing() -> list[Row]:
    """Return MB of text per second of the whole stage, the best alternative first."""
    found = read("tokenizing")
    version = found["versions"]
    times = found["times_longer_than_ours"]
    peers = {
        "datasets_joined": f"datasets {version['datasets']}, batched map, one row of ids per batch",
        "datasets_batched": f"datasets {version['datasets']}, batched map",
        "litdata": f"litdata {version['litdata']}, `optimize`",
        "datatrove": f"datatrove {version['datatrove']}",
        "nanogpt": f"nanoGPT's `prepare.py`, datasets {version['datasets']}",
    }
    rates = {name: f"{rate['median']:.3g} MB/s" for name, rate in found["mb_per_s"].items()}
    task = f"tokenize {found['text']['utf8_bytes'] / 1e6:,.0f} MB"
    ours = f"gigatoken {version['gigatoken']}"
    return [Row(task, f"{ours}: {rates['ours']}", f"{peers[peer]}: {rates[peer]}", times[peer]) for peer in peers]


def steps() -> list[Row]:
    """Return tokens per second of training steps, equal formats first."""
    found = read("train_step")
    rows = []
    theirs = f"transformers {found['versions']['transformers']}"
    for question, ours, peer, format_of_ours, peer_in_words in (
        ("30m", "ours, float32", "transformers, float32", "float32", f"{theirs}, float32"),
        ("30m", "ours", "transformers, float32", "bfloat16", f"{theirs}, float32"),
        ("270m", "ours", "transformers, autocast, allocator tuned", "bfloat16", f"{theirs}, bfloat16, our allocator"),
        ("270m", "ours", "transformers, autocast", "bfloat16", f"{theirs}, bfloat16"),
    ):
        step = found["questions"][question]
        rates = {name: f"{rate:,.0f} tokens/s" for name, rate in step["tokens_per_s"].items()}
        times = ratios({name: step["seconds"][name] for name in (ours, peer)}, ours)[peer]
        task = f"a training step of {step['parameters'] / 1e6:.0f} M parameters"
        rows.append(Row(task, f"{format_of_ours}: {rates[ours]}", f"{peer_in_words}: {rates[peer]}", times))
    return rows


def time_to_loss() -> list[Row]:
    """Return seconds of training to the last loss of nanoGPT's recipe, over the seeds."""
    found = read("time_to_loss")
    seconds = [run["seconds_to_target"] for run in found["runs"] if run["seconds_to_target"]["ours"]]
    ours, theirs = (summary([run[name] for run in seconds])["median"] for name in ("ours", "reference"))
    task = f"train to the loss that nanoGPT's recipe has after {found['reference_s']:.0f} s"
    times = summary([run["reference"] / run["ours"] for run in seconds])
    baseline = f"nanoGPT's CPU recipe, written again, float32, untuned: {theirs:.0f} s"
    return [Row(task, f"dtype {found['train']['dtype']}, tuned on this corpus: {ours:.0f} s", baseline, times)]


def in_words(times: dict[str, float]) -> str:
    """Return a median and its range: `3.9 (3.5 to 4.3)`."""
    digits = 2 if times["median"] < 3 else 1 if times["median"] < 30 else 0
    median, least, most = (f"{times[name]:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} (one run)" if times["min"] == times["max"] else f"{median} ({least} to {most})"


def comparisons(rows: list[Row]) -> str:
    """Return rows as a table."""
    head = "task | ours | baseline | speed-up"
    return table(head, [(*row[:3], in_words(row.speed_up)) for row in rows])


def speeds() -> str:
    """docs/benchmarks.md: every comparison."""
    where = f"Measured on {machine('tokenizing')}; training to a loss on {machine('time_to_loss')}."
    return f"{where}\n\n{comparisons([*tokenizing(), *steps(), *time_to_loss()])}"


def step() -> str:
    """docs/benchmarks.md: a training step beside the peak of the processor, with and without AMX."""
    rows = []
    found = [read(name)["questions"]["30m"] for name in ("train_step", "train_step_without_amx")]
    for case in ("ours", "ours, compiled", "ours, float32"):
        rates = [(each["tokens_per_s"].get(case), each["share_of_bf16_peak"].get(case)) for each in found]
        cells = [(f"{rate:,.0f} tokens/s", f"{share['median']:.0%}") if rate else ("–", "–") for rate, share in rates]
        rows.append((case, *cells[0], *cells[1]))
    head = "30 M parameters, bfloat16 | with AMX | of its bfloat16 peak | without AMX | of its bfloat16 peak"
    return table(head, rows)


def spread(values: list[float]) -> str:
    """Return the smallest and the largest value: `1.662 to 1.674`."""
    return f"{min(values):.3f} to {max(values):.3f}" if values else "–"


def records() -> str:
    """docs/benchmarks.md: the recipes of speedrun.yaml, each with its change from the recipe before.

    A recipe that was trained again for those that were appended to it has a row for each day.
    """
    found = read("speedrun")
    rows = []
    name = ""
    for row in found["rows"]:
        if again := row.get("runs_of_recipe_before"):
            rows.append(row_of_record(f"{name}, on a later day", again, {}))
        name = row["recipe"]
        rows.append(row_of_record(name, row["runs"], row.get("change", {})))
    head = f"recipe | tokens | seconds | bits per byte, {len(found['seeds'])} seeds | change | p"
    return f"Measured on {found['machine']}.\n\n{table(head, rows)}"


def row_of_record(name: str, runs: list[dict], change: dict) -> tuple[str, ...]:
    """Return a row of that table."""
    value = change.get("value")
    p_value = change.get("p_value")
    seconds = [run["seconds"] for run in runs]
    return (
        name, f"{runs[0]['tokens']:,}", f"{min(seconds):.0f} to {max(seconds):.0f}",
        spread([run["bits_per_byte"] for run in runs]), "–" if value is None else f"{value:+.3f}",
        "–" if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}",
    )  # fmt: skip


# Reference.


def parameters() -> str:
    """docs/reference.md: the parameters of each file."""
    head = "parameter | type | value | meaning"
    return "\n\n".join(f"## {file}\n\n{table(head, reference.parameters(file))}" for file in reference.FILES)


def commands() -> str:
    """docs/reference.md: a heading for each goal, and below it one for each command, with a list of its arguments."""
    lines = []
    for goal, commands_of_goal in reference.commands().items():
        lines += [f"## Commands: {goal}", ""]
        for command in commands_of_goal:
            lines += [f"### {command.name}", "", textwrap.fill(command.does, 120), ""]
            lines += [f"- {argument}" for argument in command.arguments]
            lines += [""] if command.arguments else []
    return "\n".join(lines)


FRAGMENTS: dict[str, Callable[[], str]] = {
    # README.md
    "default-run": default_run,
    "first-hour": first_hour,
    "scale": scale,
    "verdict": verdict,
    "sample": sample,
    "first-experiment": lambda: experiment("first_experiment"),
    "seeds": seeds,
    "judge-nights": judge_nights,
    "graph": graph,
    # docs/
    "migration": migration,
    "results": results,
    **TUTORIAL,
    "checkpoints": checkpoints,
    "second-experiment": lambda: experiment("second_experiment"),
    "detectable": detectable,
    "baselines": baselines,
    "compressed": compressed,
    "speeds": speeds,
    "step": step,
    "records": records,
    "default-data": default_data,
    "default-evaluation": default_evaluation,
    "rounding": rounding,
    "exact": exact,
    "processors": processors,
    "gpu": gpu,
    "gpu-models": gpu_models,
    "gpu-time": gpu_time,
    "judge": judge,
    "parameters": parameters,
    "commands": commands,
    "order-rules": exact_order.order_rules,
    "order-constants": exact_order.order_constants,
    "order-code": exact_order.order_code,
    "order-inputs": exact_order.order_inputs,
    "order-vectors": exact_order.order_vectors,
}


def filled(page: str) -> str:
    """Return a page with every marked place filled in."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{FRAGMENTS[mark[2]]().strip()}\n\n{mark[3]}", page)


def main() -> int:
    """Fill in every page, or with --check say which are not up to date, and which fragments are on no page."""
    check = "--check" in sys.argv
    stale = 0
    marked = []
    for path in [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.read_text(encoding="utf-8")
        marked += [match[2] for match in MARKED.finditer(page)]
        if filled(page) != page:
            stale += 1
            print(f"{'run `make figures`' if check else 'wrote'}: {path.relative_to(ROOT)}")
            if not check:
                write_text(path, filled(page))
    if sorted(marked) != sorted(FRAGMENTS):
        sys.exit(f"error: the pages mark {sorted(marked)}, but the fragments are {sorted(FRAGMENTS)}")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
