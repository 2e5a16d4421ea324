"""The answer of a comparison in words: a sentence to quote, warnings, what more seeds would show, and a signature."""

from typing import NamedTuple

from evidence.difference import DOCUMENTS, NOT_SHOWN, SEEDS, Comparisons, Difference, Equivalence
from evidence.intervals import Estimate, effective_documents
from evidence.runs import BITS_PER_BYTE, Group, text_hash
from evidence.spread import LEAST_SEEDS, POWER, Power, noise_of, spread_of, what_more_seeds_show

VERSION = "0.4.0"  # of the package
FEW_DOCUMENTS = 30  # effective number below which the report warns


# Sentences.


def answers(found: Comparisons) -> list[str]:
    """Return what was read, the `answer` of each comparison, and what is peculiar about the groups.

    If there is a single group, its noise is the answer.
    """
    run = found.groups[0].runs[0]
    lines = [f"Read: {run.kind}; {run.measure.better} is better."] if run.kind else []
    for each in found.differences:
        lines.append(answer(each))
        if each.equivalence:
            lines.append(equivalence_sentence(each, each.equivalence))
    for group in found.groups:
        lines += describe_repeats(group)
    if not found.differences:
        lines += describe_noise(found.groups[0], found.options.confidence)
    return lines


def explanations(found: Comparisons) -> list[str]:
    """Return what more seeds would show, warnings, and the signatures."""
    lines = []
    for each in found.differences:
        if len(each.sources) > 1:
            of_each = [f"{name} {own.value:+.4f} ({interval(own)})" for name, own in each.sources.items()]
            lines.append(f"`{each.b.name}` by source: {', '.join(of_each)}.")
        if shown := what_more_seeds_show(each):
            lines.append(f"`{each.b.name}`: {power_sentence(shown, found.options.confidence)}")
    lines += [note.text for each in found.differences for note in notes_of(each)]
    lines += [f"Signature: {signature(each)}" for each in found.differences]
    return lines


def answer(found: Difference) -> str:
    """Return the verdict in one sentence: the difference, its intervals, and how many seeds and documents they have.

    The interval that decides comes first. Its p is corrected for the number of tests.
    """
    p = f", p {p_text(found)}" if found.p_value is not None else ""
    if p and found.num_tests > 1:
        p += f" after Holm's correction for {found.num_tests} comparisons"
    intervals = []
    if len(found.sizes) > 1:
        intervals.append(f"over {len(found.sizes):,} documents {interval(found.documents)}")
    if found.basis == SEEDS:
        name_of_a = f"`{found.a.name}`"
        name_of_b = f"`{found.b.name}`"
        intervals.insert(0, f"over {seeds_text(found)} {interval(found.seeds)}")
    else:
        name_of_a = models_text(found.a)
        name_of_b = models_text(found.b)
        intervals.append(f"over seeds unknown, {seeds_text(found)}")
    intervals[0] += p

    if found.verdict == NOT_SHOWN:
        said = f"No difference was shown between {name_of_b} and {name_of_a}"
    else:
        said = f"{name_of_b[0].upper()}{name_of_b[1:]} is {found.verdict} than {name_of_a}"
    delta = f"{found.deciding.value:+.4f} {found.measure.unit}"
    left_out = ", ".join(f"`{name}`" for name in found.left_out)
    return (
        f"{said}: {delta} ({percent_of(found.options.confidence)} interval {'; '.join(intervals)})."
        + f" Left out, without a partner: {left_out}." * bool(left_out)
    )


def models_text(side: Group) -> str:
    """Return the name of a side whose trained models are compared, not their configuration."""
    if len(side.runs) == 1:
        return f"the model `{side.name}`"
    return f"the {len(side.runs)} models `{side.name}` on average"


def interval(found: Estimate) -> str:
    """Return the ends of an interval as text."""
    if found.low is None or found.high is None:
        return "unknown"
    return f"{found.low:+.4f} to {found.high:+.4f}"


def percent_of(confidence: float) -> str:
    return f"{100 * confidence:.4g} %"


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
    if found.are_pairs:
        return f"{of_a} pairs of equal seeds"
    return "1 seed of each side" if of_a == of_b == 1 else f"{of_a} and {of_b} independent runs"


def equivalence_sentence(found: Difference, of: Equivalence) -> str:
    """Return whether both sides are equivalent, with the interval that decides."""
    margin = f"within ±{of.within:g} {found.measure.unit} over {found.basis}"
    ends = f"{percent_of(of.confidence)} interval {interval(of.interval)}"
    return f"`{found.b.name}` and `{found.a.name}`: {of.verdict} {margin} ({ends})."


def describe_repeats(group: Group) -> list[str]:
    """Return which runs of a group do not count because they are equal to others."""
    if len(group.runs) == 1 and any(run.seed != group.runs[0].seed for run in group.repeats):
        return [f"The seed was not used: all runs of `{group.name}` have equal losses; no noise is known."]
    return [f"`{run.name}` repeats a run of `{group.name}`, and does not count." for run in group.repeats]


# What more seeds would show.


def power_sentence(shown: Power, confidence: float) -> str:
    """Return the detectable differences, the spread for which they hold, and how uncertain it is."""
    units = "pairs of equal seeds" if shown.are_pairs else "seeds of each side"
    differences = ", ".join(f"{difference:.4f} with {count}" for count, difference in shown.detectable.items())
    return (
        f"minimum detectable difference at {percent_of(POWER)} power, by number of {units}: {differences}; if their "
        f"standard deviation is the measured {shown.standard_deviation:.4f} "
        f"({percent_of(confidence)} interval {shown.low:.4f} to {shown.high:.4f})."
    )


def describe_noise(group: Group, confidence: float) -> list[str]:
    """Return how far seeds spread the score of one configuration, and what more seeds would show."""
    scores = [f"{'unknown' if run.seed is None else run.seed} ({run.score:.4f}, {run.name})" for run in group.runs]
    said = "the noise of seeds is not known, because only one run counts"
    if len(group.runs) > 1:
        spread = f"{spread_of(group.scores).sd:.4f} {group.runs[0].measure.unit}"
        few = ", which are too few to conclude from" if len(group.runs) < LEAST_SEEDS else ""
        said = f"{spread} is the standard deviation over {len(group.runs)} seeds{few}"
    lines = [f"`{group.name}`: {said}; the mean is {group.scores.mean():.4f}.", f"Seeds: {', '.join(scores)}."]
    shown = noise_of([group], confidence)
    return [*lines, f"`{group.name}`: {power_sentence(shown, confidence)}"] if shown else lines


# Warnings.


class Note(NamedTuple):
    """A kind, one of those in schemas/compare-2.json, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(found: Difference) -> list[Note]:
    """Return the warnings that follow from the losses."""
    notes = []

    # What makes the interval over seeds impossible.
    if found.basis == DOCUMENTS:
        text = "Judged over documents: the verdict is about these trained models. Another seed may reverse it."
        if len(found.sizes) == 1:
            text = (
                "With a single loss of each run, only two seeds or more of each side can show a difference. Join them "
                "by a column `group` (`Group` of W&B), or by names such as `wider-seed1` and `wider-seed2`."
            )
        notes.append(Note("single_runs", text))
    elif found.seeds.p_value is None:
        notes.append(Note("no_noise", "All seeds give the same difference, so no noise over seeds is known."))

    # What makes the interval over documents too narrow.
    effective = effective_documents(found.sizes)
    if len(found.sizes) > 1 and effective < FEW_DOCUMENTS:
        largest = found.sizes.max() / found.sizes.sum()
        text = (
            f"Few documents: the {len(found.sizes)} count like {effective:.0f} of equal length (the longest has "
            f"{percent_of(largest)}), so the interval is not reliable. Evaluate on more text."
        )
        notes.append(Note("few_documents", text))
    return notes


# To quote.


def signature(found: Difference) -> str:
    """Return on one line all that decides the verdict beside the losses."""
    sides = [",".join("?" if seed is None else str(seed) for seed in side.seeds) for side in (found.a, found.b)]
    if found.basis == SEEDS:
        interval = "paired t" if found.are_pairs else "Welch's t"
    elif found.measure == BITS_PER_BYTE:
        interval = f"bootstrap of {found.options.resamples}"
    else:
        interval = "clustered t"
    seeds = f"{sides[0]} paired" if found.are_pairs else " and ".join(sides)
    margin = f"|within:{found.options.within:g}" if found.options.within else ""
    return (
        f"evidence:{VERSION}|unit:{found.measure.unit.replace(' ', '_')}"
        f"|better:{found.measure.better}"
        f"|documents:{len(found.sizes)}|text:{text_hash(found.a.runs[0])}|seeds:{seeds}"
        f"|interval:{interval} over {found.basis}|confidence:{found.options.confidence:g}|tests:{found.num_tests}"
        f"{margin}"
    )
