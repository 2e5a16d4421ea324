"""The answer of a comparison: a sentence to quote, warnings, what more seeds would show, signature and citation."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evidence.difference import (
    DOCUMENTS,
    NOT_SHOWN,
    SEEDS,
    Comparisons,
    Difference,
    Equivalence,
    Options,
)
from evidence.intervals import Estimate, dominating_documents, effective_documents
from evidence.runs import BITS_PER_BYTE, Group, text_hash
from evidence.spread import LEAST_SEEDS, POWER, Power, noise_of, spread_of, what_more_seeds_show

VERSION = 2  # of the meaning of a signature, the number of the JSON schema
FEW_DOCUMENTS = 30  # effective number below which the report warns


# Sentences.


def answers(found: Comparisons) -> list[str]:
    """Return the `answer` of each comparison, those about equivalence, and what is peculiar about the groups.

    If there is a single group, its noise is the answer.
    """
    lines = [answer(each, found.num_tests, found.confidence) for each in found.differences]
    for each, equivalence in zip(found.differences, found.equivalences, strict=False):
        lines.append(equivalence_sentence(each, equivalence))
    for group in found.groups:
        lines += describe_repeats(group)
    if not found.differences:
        lines += describe_noise(found.groups[0], found.confidence)
    return lines


def explanations(found: Comparisons) -> list[str]:
    """Return of what the verdicts are true, what more seeds would show, and warnings."""
    lines = [basis_sentence(each) for each in found.differences]
    lines += [power_line(each, found.confidence) for each in found.differences]
    lines += [note.text for each in found.differences for note in notes_of(each)]
    return lines


def distinct(lines: Sequence[str]) -> list[str]:
    """Return each line once, without empty ones."""
    return [line for line in dict.fromkeys(lines) if line]


def answer(found: Difference, num_tests: int, confidence: float) -> str:
    """Return the verdict in one sentence: the difference, its intervals, and how many seeds and documents they have.

    The interval that decides comes first. Its p is corrected for the number of tests.
    """
    over_documents = f"over {count_of(found.sizes, 'document')} {interval(found.documents)}"
    p = f", p {p_text(found)}" if found.p_value is not None else ""
    if found.is_tested and num_tests > 1:
        p += f" after Holm's correction for {num_tests} comparisons"
    if found.basis == SEEDS:
        name_of_a = f"`{found.a.name}`"
        name_of_b = f"`{found.b.name}`"
        intervals = f"over {seeds_text(found)} {interval(found.seeds)}{p}; {over_documents}"
    else:
        name_of_a = models_text(found.a)
        name_of_b = models_text(found.b)
        intervals = f"{over_documents}{p}; over seeds unknown, {seeds_text(found)}"

    verdict = found.verdict(confidence)
    if verdict == NOT_SHOWN:
        said = f"No difference was shown between {name_of_b} and {name_of_a}"
    else:
        said = f"{name_of_b[0].upper()}{name_of_b[1:]} is {verdict} than {name_of_a}"
    if found.sides.left_out:
        said += f", with {named_seeds(found.a)} of both"
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
    names = [f"`{run.name}`" for _, runs in found.sides.left_out for run in runs]
    return f" Left out, without a partner: {', '.join(names)}." if names else ""


def named_seeds(group: Group) -> str:
    """Return known seeds as text: "seed 3", "the seeds 1, 2"."""
    seeds = ", ".join(map(str, group.seeds))
    return f"seed {seeds}" if len(group.runs) == 1 else f"the seeds {seeds}"


def interval(found: Estimate | Equivalence) -> str:
    """Return the ends of an interval as text."""
    if found.low is None or found.high is None:
        return "unknown"
    return f"{found.low:+.4f} to {found.high:+.4f}"


def percent_of(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def p_text(found: Difference) -> str:
    """Return p as text, with ≤ or < where only a limit is known."""
    if found.p_value is None:
        return "unknown"
    if found.deciding.p_is_bound:
        return f"≤ {found.p_value:.2g}"
    return "< 0.0001" if found.p_value < 1e-4 else f"= {found.p_value:.2g}"


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
    margin = f"within ±{equivalence.within:g} {found.measure.unit} over {found.basis}"
    percent = f"{100 * equivalence.confidence:.4g} %"
    return f"{names}: {equivalence.verdict} {margin} ({percent} interval {interval(equivalence)})."


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
    shown = what_more_seeds_show(found, confidence)
    return power_sentence(shown, confidence) if shown else ""


def power_sentence(shown: Power, confidence: float) -> str:
    """Return the detectable differences, the spread for which they hold, and how much larger it may be."""
    first, *others = shown.differences.items()
    if shown.are_pairs:
        names = " and ".join(f"`{group.name}`" for group in shown.groups)
        spread = "of pairs of equal seeds"
        known = f"{len(shown.groups[0].runs)} pairs of {names}"
        units = "pairs"
    else:
        spread = "over seeds of each side"
        known = " and ".join(f"{len(group.runs)} seeds of `{group.name}`" for group in shown.groups)
        units = "seeds of each side"
    differences = [f"{first[1]:.4f} with {first[0]} {units}"]
    differences += [f"{difference:.4f} with {count}" for count, difference in others]
    return (
        f"Minimum detectable difference at {percent_of(POWER)} power, if the deviation {spread} is "
        f"{shown.spread.sd:.4f} as in {known}: {', '.join(differences)}. The deviation may be up to "
        f"{shown.upper_factor:.1f} times as large ({percent_of(confidence)} interval {shown.low:.4f} to "
        f"{shown.high:.4f}), and so may these."
    )


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
    return lines


# Warnings.


class Note(NamedTuple):
    """A kind, one of those in schemas/compare-2.json, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(found: Difference) -> list[Note]:
    """Return the warnings that follow from the losses."""
    notes = []

    # What makes the interval over seeds impossible.
    if found.is_of_one_configuration:
        notes.append(Note("same_configuration", basis_sentence(found)))
    elif found.basis == DOCUMENTS:
        notes.append(Note("single_runs", basis_sentence(found)))
    elif found.seeds.p_value is None:
        notes.append(Note("no_noise", "All seeds give the same difference, so no noise over seeds is known."))

    # What makes the interval over documents too narrow.
    sizes = found.sizes
    effective = effective_documents(sizes)
    if effective < FEW_DOCUMENTS:
        text = (
            f"Few documents: the {len(sizes)} count like {effective:.0f} of equal length, so the interval may be too "
            "narrow. Evaluate on more text."
        )
        notes.append(Note("few_documents", text))
    for i, fraction in dominating_documents(sizes).items():
        if fraction < 1:
            without = (found.changes.sum() - found.changes[i]) / (sizes.sum() - sizes[i])
            name = found.a.runs[0].name_of_document(i)
            text = f"Document {name} has {100 * fraction:.0f} % of the bytes; without it, Δ is {without:+.4f}."
            notes.append(Note("dominating_document", text))
    return notes


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
        f"v:{VERSION}",
    ]
    return "|".join(parts)


def citation(found: Comparisons, differs: Sequence[str], source: str = "", where: str = "") -> list[str]:
    """Return a sentence for each difference and a table with its caption, as Markdown to copy.

    differs: what differs, for each difference. source, where: what the documents are of; which code and text were used.
    """
    first = found.groups[0]
    run = first.runs[0]
    unit = run.measure.unit
    units = "bytes" if run.measure == BITS_PER_BYTE else "items"
    measured = f"{count_of(run.sizes, 'validation document')} ({int(run.sizes.sum()):,} {units}){source}"
    percent = percent_of(found.confidence)

    lines = []
    rows = [row(first, None)]
    for each, difference in zip(found.differences, differs, strict=True):
        said = answer(each, found.num_tests, found.confidence)
        lines.append(f"On {measured}: {said} The interval over {each.basis} decides. {difference}".rstrip())
        lines.append(f"Signature: `{signature(each, found.options)}`")
        rows.append(row(each.b, each))

    better = "higher" if run.measure.is_higher_better else "lower"
    caption = (
        f"{unit.capitalize()} on {measured}; {better} is better. Differences are to `{first.name}`. The {percent} "
        "intervals over documents cover the choice of documents for these models, those over seeds (of pairs of equal "
        "seeds, or Welch 1947) the choice of seeds for these documents; ± is the standard deviation over seeds, and p "
        f"that of the interval that decides, after Holm's correction for several comparisons. {where}"
    )
    header = ["run", "seeds", unit, "difference", "interval over documents", "interval over seeds", "p"]
    table = [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
    return [*lines, "", *table, "", f"Table: {caption}".rstrip()]


def row(group: Group, found: Difference | None) -> list[str]:
    """Return the cells of a group in the table to cite; `found` is None for the baseline, of all of its runs."""
    deviation = f" ± {group.scores.std(ddof=1):.4f}" if len(group.runs) > 1 else ""
    cells = [group.name, str(len(group.runs)), f"{group.scores.mean():.4f}{deviation}"]
    if found is None:
        return [*cells, "–", "–", "–", "–"]
    p = p_text(found).removeprefix("= ")
    return [*cells, f"{found.deciding.value:+.4f}", interval(found.documents), interval(found.seeds), p]
