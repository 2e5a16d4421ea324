"""The answer of a comparison: a sentence to quote, warnings, what more seeds would show, signature and citation."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evidence.difference import (
    EQUIVALENT,
    NOT_DECIDED,
    NOT_SHOWN,
    SEEDS,
    Comparisons,
    Difference,
    Equivalence,
    Options,
)
from evidence.intervals import Estimate, dominating_documents, effective_documents
from evidence.runs import BITS_PER_BYTE, Group, Run, text_hash
from evidence.spread import LEAST_SEEDS, POWER, Power, noise_of, spread_of, what_more_seeds_show

VERSION = 2  # of the meaning of a signature, the number of the JSON schema
FEW_DOCUMENTS = 30  # effective number below which the report warns
CORRELATED = 0.3  # of a difference with the log of the size, from which the report warns
SAID = ("same_configuration", "single_runs")  # kinds of notes that `basis_sentence` says


# Sentences.


def answers(found: Comparisons) -> list[str]:
    """Return the `answer` of each comparison, those about equivalence, and what is peculiar about the groups.

    If there is a single group, its noise is the answer.
    """
    lines = [answer(each, found.num_tests, found.confidence) for each in found.corrected]
    for each, equivalence in zip(found.corrected, found.equivalences, strict=False):
        lines.append(equivalence_sentence(each, equivalence))
    for group in found.groups:
        lines += describe_repeats(group)
    if not found.corrected:
        lines += describe_noise(found.groups[0], found.confidence)
    return lines


def answer(found: Difference, num_tests: int, confidence: float) -> str:
    """Return the verdict in one sentence: the difference, its intervals, and how many seeds and documents they have.

    The interval that decides comes first. Its p is corrected for the number of tests.
    """
    over_documents = f"over {count_of(found.sizes, 'document')} {interval(found.documents)}"
    p = p_phrase(found.deciding, num_tests if found.is_tested else 1)
    if found.basis == SEEDS:
        name_of_a = f"`{found.a.name}`"
        name_of_b = f"`{found.b.name}`"
        intervals = f"over {seeds_text(found)} {interval(found.seeds)}{p}; {over_documents}"
    else:
        name_of_a = models_text(found.a)
        name_of_b = models_text(found.b)
        intervals = f"{over_documents}{p}; over seeds unknown, {seeds_text(found)}"

    verdict = found.verdict(found.deciding, confidence)
    if verdict == NOT_SHOWN:
        said = f"No difference was shown between {name_of_b} and {name_of_a}"
    else:
        said = f"{name_of_b[0].upper()}{name_of_b[1:]} is {verdict} than {name_of_a}"
    if found.sides.left_out:
        said += f", with {named_seeds(found.a.runs)} of both"
    delta = f"{found.deciding.value:+.4f} {found.measure.unit}"
    return f"{said}: {delta} ({percent_of(confidence)} interval {intervals}).{left_out_text(found)}"


def count_of(sizes: np.ndarray, unit: str) -> str:
    return f"{len(sizes):,} {unit}{'s' if len(sizes) != 1 else ''}"


def models_text(side: Group) -> str:
    """Return the name of a side whose trained models are compared, not their configuration."""
    if len(side.runs) == 1:
        return f"the model `{side.name}`"
    return f"the {len(side.runs)} models `{side.name}` on average"


def left_out_text(found: Difference) -> str:
    """Return which runs do not count because the other side has no run of their seeds; "" if all count."""
    texts = []
    for group, runs in found.sides.left_out:
        known = [run for run in runs if run.seed is not None]
        if known:
            texts.append(f"{named_seeds(known)} of `{group.name}`")
        if unknown := len(runs) - len(known):
            texts.append(f"{unknown} {'run' if unknown == 1 else 'runs'} of `{group.name}` without a seed")
    return f" Left out, without a partner: {', '.join(texts)}." if texts else ""


def named_seeds(runs: Sequence[Run]) -> str:
    """Return known seeds as text: "seed 3", "the seeds 1 to 5", "the seeds 1, 4"."""
    seeds = sorted(run.seed for run in runs if run.seed is not None)
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"the seeds {seeds[0]} to {seeds[-1]}"
    return f"the seeds {', '.join(map(str, seeds))}"


def interval(found: Estimate | Equivalence) -> str:
    """Return the ends of an interval as text."""
    if found.low is None or found.high is None:
        return "unknown"
    return f"{found.low:+.4f} to {found.high:+.4f}"


def percent_of(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def p_text(found: Estimate) -> str:
    """Return the p-value of an estimate as text, with ≤ or < where only a limit is known."""
    if found.p_value is None:
        return ""
    if found.p_is_bound:
        return f"≤ {found.p_value:.2g}"
    return "< 0.0001" if found.p_value < 1e-4 else f"{found.p_value:.2g}"


def p_phrase(found: Estimate, num_tests: int) -> str:
    """Return p as the end of a phrase, "" if it is unknown."""
    if found.p_value is None:
        return ""
    p = p_text(found)
    is_number = p[0].isdigit()  # not "≤ 0.002"
    of_several = f" after Holm's correction for {num_tests} comparisons" if num_tests > 1 else ""
    return f", p {'= ' if is_number else ''}{p}{of_several}"


def seeds_text(found: Difference) -> str:
    """Return how many seeds each side has: "5 pairs of equal seeds", or "5 and 3 independent runs"."""
    of_a = len(found.a.runs)
    of_b = len(found.b.runs)
    if found.is_paired:
        return f"{of_a} pairs of equal seeds"
    return "1 seed of each side" if of_a == of_b == 1 else f"{of_a} and {of_b} independent runs"


def basis_sentence(found: Difference) -> str:
    """Return a sentence that says of what the verdict is true."""
    if found.is_of_one_configuration:
        return "The configuration is the same, so the difference comes from the machine."
    if found.basis == SEEDS:
        return "Judged over seeds: the verdict is about the two configurations, on these documents."
    return "Judged over documents: the verdict is about these trained models. Another seed may reverse it."


def equivalence_sentence(found: Difference, equivalence: Equivalence) -> str:
    """Return whether both sides are equivalent, with the interval that decides."""
    names = f"`{found.b.name}` and `{found.a.name}`"
    if equivalence.verdict == EQUIVALENT:
        said = f"{names} are equivalent"
    elif equivalence.verdict == NOT_DECIDED:
        said = f"Not decided whether {names} are equivalent"
    else:
        said = f"{names} are not equivalent"
    margin = f"within ±{equivalence.within:g} {found.measure.unit} over {found.basis}"
    return f"{said} {margin} ({100 * equivalence.confidence:.4g} % interval {interval(equivalence)})."


def describe_repeats(group: Group) -> list[str]:
    """Return which runs of a group count once because they are equal."""
    if group.is_seed_unused:
        count = 1 + len(group.repeats)
        return [f"The seed was not used: all {count} runs of `{group.name}` have equal losses; no noise is known."]
    lines = []
    for of in group.runs:
        names = [f"`{repeat.run.name}`" for repeat in group.repeats if repeat.of is of]
        if names:
            lines.append(f"{', '.join(names)} and `{of.name}` are the same run, which counts once.")
    return lines


# What more seeds would show.


def power_line(found: Difference, confidence: float) -> str:
    """Return what other numbers of seeds would show, "" if it is unknown."""
    if found.is_of_one_configuration:
        return ""
    shown = what_more_seeds_show(found.sides.whole_a, found.sides.whole_b, confidence)
    return power_sentence(shown, confidence) if shown else ""


def power_sentence(shown: Power, confidence: float) -> str:
    """Return the detectable differences, the spread for which they hold, and how much larger it may be."""
    if shown.are_pairs:
        count = len(shown.groups[0].runs)
        names = " and ".join(f"`{group.name}`" for group in shown.groups)
        assumed = f"if the deviation of pairs of equal seeds is {shown.spread.sd:.4f} as in {count} pairs of {names}"
        unit = "pairs"
    else:
        seeds = [f"{len(group.runs)} seeds of `{group.name}`" for group in shown.groups]
        assumed = f"if the deviation over seeds of each side is {shown.spread.sd:.4f} as in {' and '.join(seeds)}"
        unit = "seeds of each side"
    return (
        f"Minimum detectable difference at {percent_of(POWER)} power, {assumed}: {by_count(shown.differences, unit)}. "
        f"The deviation may be up to {shown.upper_factor:.1f} times as large ({percent_of(confidence)} interval "
        f"{shown.low:.4f} to {shown.high:.4f}), and so may these."
    )


def by_count(differences: dict[int, float], unit: str) -> str:
    """Return differences by the number of units that show them: "0.0123 with 2 seeds, 0.0071 with 3"."""
    first, *others = differences.items()
    texts = [f"{first[1]:.4f} with {first[0]} {unit}"]
    texts += [f"{difference:.4f} with {count}" for count, difference in others]
    return ", ".join(texts)


def describe_noise(group: Group, confidence: float) -> list[str]:
    """Return how far seeds spread the score of one configuration, and what more seeds would show."""
    unit = group.runs[0].measure.unit
    scores = [f"{'unknown' if run.seed is None else run.seed} ({run.score:.4f}, {run.name})" for run in group.runs]
    seeds = f"Seeds: {', '.join(scores)}."
    if len(group.runs) == 1:
        return [f"`{group.name}`: the noise of seeds is not known, because only one run counts.", seeds]
    spread = spread_of(group.scores)
    said = f"`{group.name}`: {spread.sd:.4f} {unit} is the standard deviation over {len(group.runs)} seeds"
    if len(group.runs) < LEAST_SEEDS:
        return [f"{said}, which are too few to conclude from.", seeds]
    lines = [f"{said}; the mean is {group.scores.mean():.4f}.", seeds]
    shown = noise_of([group], confidence)
    if shown:
        lines.append(power_sentence(shown, confidence))
        lines.append("Equal seeds can move both sides together; pairs of them then show smaller differences.")
    return lines


# Warnings.


class Note(NamedTuple):
    """A kind, which docs/json.md lists, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(found: Difference) -> list[Note]:
    """Return the warnings that follow from the losses."""
    notes = []

    # What makes the interval over seeds impossible.
    single = " and ".join(f"`{group.name}`" for group in (found.a, found.b) if len(group.runs) == 1)
    if found.is_of_one_configuration:
        notes.append(Note("same_configuration", basis_sentence(found)))
    elif single:
        text = (
            f"Seeds: only one run of {single} counts, so this compares trained models, not configurations. "
            "Run more seeds."
        )
        notes.append(Note("single_runs", text))
    elif found.seeds.p_value is None:
        what = "pairs have one difference" if found.is_paired else "runs of each side have one score"
        notes.append(Note("no_noise", f"All {what}, so no noise over seeds is known."))

    # What makes the interval over documents too narrow.
    number = len(found.sizes)
    effective = effective_documents(found.sizes)
    if number == 1:
        text = "There is one document, so nothing is known about other text: only seeds can decide."
        notes.append(Note("few_documents", text))
    elif effective < FEW_DOCUMENTS:
        text = (
            f"Few documents: the {number} count like {effective:.0f} of equal length, so the interval may be too "
            "narrow. Evaluate on more text."
        )
        notes.append(Note("few_documents", text))
    for name, fraction, without in dominating(found):
        text = f"Document {name} has {100 * fraction:.0f} % of the bytes; without it, Δ is {without:+.4f}."
        notes.append(Note("dominating_document", text))
    correlation = size_correlation(found.changes, found.sizes)
    if correlation is not None:
        text = (
            f"Δ depends on the length of a document (correlation with log bytes {correlation:+.2f}), so it is valid "
            "only for text of similar lengths."
        )
        notes.append(Note("depends_on_length", text))
    return notes


def dominating(found: Difference) -> list[tuple[str, float, float]]:
    """Return the name of each document with a large fraction of the bytes, that fraction, and Δ without it."""
    sizes = found.sizes
    changes = found.changes
    documents = []
    for i, fraction in dominating_documents(sizes).items():
        if fraction < 1:
            without = float((changes.sum() - changes[i]) / (sizes.sum() - sizes[i]))
            documents.append((found.a.runs[0].name_of_document(i), fraction, without))
    return documents


def size_correlation(values: np.ndarray, sizes: np.ndarray) -> float | None:
    """Return the correlation of the rates values / sizes (N,) with the log of the sizes, if it is one to warn of."""
    keep = sizes > 0
    rates = values[keep] / sizes[keep]
    logs = np.log(sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None


# To quote.


def signature(found: Difference, options: Options) -> str:
    """Return on one line all that decides the figures: text, runs, what decides, and the settings of the intervals."""
    sides = []
    for key, side in (("a", found.a), ("b", found.b)):
        seeds = ",".join("?" if seed is None else str(seed) for seed in side.seeds)
        sides.append(f"{key}:{side.name}[{seeds}]")
    parts = [
        f"text:{text_hash(found.a.runs[0])}",
        f"docs:{len(found.sizes)}",
        *sides,
        f"basis:{'pairs' if found.is_paired else found.basis}",
        f"conf:{options.confidence:g}",
        f"resamples:{options.resamples}",
        f"rng:{options.seed}",
        f"v:{VERSION}",
    ]
    return "|".join(parts)


def citation(found: Comparisons, differs: Sequence[str], source: str = "", where: str = "") -> list[str]:
    """Return a sentence for each difference and a table with its caption, as Markdown to copy.

    differs: what differs, for each difference. source, where: what the documents are of; which code and text were used.
    """
    first = found.groups[0]
    sizes = first.runs[0].sizes
    unit = first.runs[0].measure.unit
    units = "bytes" if first.runs[0].measure == BITS_PER_BYTE else "items"
    measured = f"{count_of(sizes, 'validation document')} ({int(sizes.sum()):,} {units}){source}"
    percent = percent_of(found.confidence)
    lines = []
    rows = [row(first, None)]
    for each, difference in zip(found.corrected, differs, strict=True):
        verdict = each.verdict(each.deciding, found.confidence)
        said = "no difference was shown" if verdict == NOT_SHOWN else verdict
        before, after = (float(side.scores.mean()) for side in (each.a, each.b))
        lines.append(
            f"On {measured}, `{each.a.name}` has {before:.4f} and `{each.b.name}` {after:.4f} {unit}: a "
            f"difference of {each.deciding.value:+.4f} ({said}). Its {percent} interval over documents is "
            f"{interval(each.documents)}, and over seeds {interval(each.seeds)} ({seeds_text(each)}). The interval "
            f"over {each.basis} decides.{left_out_text(each)} {difference}".rstrip()
        )
        lines.append(f"Signature: `{signature(each, found.options)}`")
        rows.append(row(each.b, each))
    several = f" p is after Holm's correction for {found.num_tests} comparisons." if found.num_tests > 1 else ""
    better = "higher" if first.runs[0].measure.is_higher_better else "lower"
    caption = (
        f"{unit.capitalize()} on {measured}; {better} is better. Differences are to `{first.name}`. The {percent} "
        "intervals over documents cover the choice of documents for these models, those over seeds (of pairs of equal "
        "seeds, or Welch 1947) the choice of seeds for these documents; ± is the standard deviation over seeds, and p "
        f"that of the interval that decides.{several} {where}"
    )
    header = ["run", "seeds", unit, "difference", "interval over documents", "interval over seeds", "p"]
    table = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    lines += [where] if where else []
    return [*lines, "", *table, "", f"Table: {caption}".rstrip()]


def row(group: Group, found: Difference | None) -> list[str]:
    """Return the cells of a group in the table to cite; `found` is None for the baseline, of all of its runs."""
    deviation = f" ± {group.scores.std(ddof=1):.4f}" if len(group.runs) > 1 else ""
    cells = [group.name, str(len(group.runs)), f"{group.scores.mean():.4f}{deviation}"]
    if found is None:
        return [*cells, "–", "–", "–", "–"]
    p = p_text(found.deciding) or "unknown"
    return [*cells, f"{found.deciding.value:+.4f}", interval(found.documents), interval(found.seeds), p]
