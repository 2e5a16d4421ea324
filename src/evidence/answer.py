"""The answer of a comparison: a sentence to quote, and the sentences that say what it means."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from evidence.difference import EQUIVALENT, NOT_DECIDED, NOT_SHOWN, SEEDS, Comparison, Comparisons, Equivalence
from evidence.intervals import Estimate, dominating_documents, effective_documents
from evidence.runs import Group, Run
from evidence.spread import POWER, detectable_by_seeds

FEW_DOCUMENTS = 30  # effective number below which the report warns
CORRELATED = 0.3  # with the log of the size, from which a report warns
SAID = ("same_configuration", "single_runs")  # kinds of notes that `basis_sentence` says


def answers(found: Comparisons) -> list[str]:
    """Return the `answer` of each comparison, followed by those about equivalence."""
    lines = [answer(each, len(found.corrected), found.confidence) for each in found.corrected]
    for comparison, equivalence in zip(found.corrected, found.equivalences, strict=False):
        lines.append(equivalence_sentence(comparison, equivalence))
    return lines


def answer(comparison: Comparison, num_comparisons: int, confidence: float) -> str:
    """Return the verdict in one sentence: the difference, its intervals, and how many seeds and documents they have.

    The interval that decides comes first. p is corrected for the number of comparisons.
    """
    if comparison.is_same_run:
        (note,) = notes_of(comparison)
        return note.text
    a = comparison.a
    b = comparison.b
    number = len(comparison.sizes)
    documents = "1 document" if number == 1 else f"{number:,} documents"
    over_documents = f"over {documents} {interval(comparison.documents)}"
    over_seeds = f"over {seeds_text(comparison)} {interval(comparison.seeds)}"
    is_over_seeds = comparison.basis == SEEDS
    intervals = [over_seeds, over_documents] if is_over_seeds else [over_documents]
    intervals[0] += p_phrase(comparison.deciding, num_comparisons)
    if not is_over_seeds:
        intervals.append(f"over seeds unknown, {seeds_text(comparison)}")

    found = comparison.verdict(comparison.deciding, confidence)
    name_of_a, name_of_b = (f"`{side.name}`" if is_over_seeds else models_text(side) for side in (a, b))
    if found == NOT_SHOWN:
        said = f"No difference was shown between {name_of_b} and {name_of_a}"
    else:
        said = f"{name_of_b} is {found} than {name_of_a}"
        said = said[0].upper() + said[1:]
    if comparison.sides.left_out:
        said += f", with {named_seeds(a.runs)} of both"
    delta = f"{comparison.deciding.value:+.4f} {comparison.measure.unit}"
    sentence = f"{said}: {delta} ({100 * confidence:g} % interval {'; '.join(intervals)})."
    return f"{sentence}{left_out_text(comparison)}"


def models_text(side: Group) -> str:
    """Return the name of a side whose trained models are compared, not their configuration."""
    if len(side.runs) == 1:
        return f"the model `{side.name}`"
    return f"the {len(side.runs)} models `{side.name}` on average"


def left_out_text(comparison: Comparison) -> str:
    """Return which runs do not count because the other side has no run of their seeds; "" if all count."""
    texts = []
    for group, runs in comparison.sides.left_out:
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


def p_phrase(found: Estimate, num_comparisons: int) -> str:
    """Return p as the end of a phrase, "" if it is unknown."""
    if found.p_value is None:
        return ""
    p = p_text(found)
    is_number = p[0].isdigit()  # not "≤ 0.002"
    of_several = f" after Holm's correction for {num_comparisons} comparisons" if num_comparisons > 1 else ""
    return f", p {'= ' if is_number else ''}{p}{of_several}"


def seeds_text(comparison: Comparison) -> str:
    """Return how many seeds each side has: "5 pairs of equal seeds", or "5 and 3 independent runs"."""
    of_a = len(comparison.a.runs)
    of_b = len(comparison.b.runs)
    if comparison.is_paired:
        return f"{of_a} pairs of equal seeds"
    return "1 seed of each side" if of_a == of_b == 1 else f"{of_a} and {of_b} independent runs"


def basis_sentence(comparison: Comparison) -> str:
    """Return a sentence that says of what the verdict is true."""
    if comparison.is_of_one_configuration:
        return "The configuration is the same, so the difference comes from the seed or the machine."
    if comparison.basis == SEEDS:
        return "Judged over seeds: the verdict is about the two configurations, on these documents."
    return "Judged over documents: the verdict is about these trained models. Other seeds may give another one."


def equivalence_sentence(comparison: Comparison, found: Equivalence) -> str:
    """Return whether both sides are equivalent, with the interval that decides."""
    names = f"`{comparison.b.name}` and `{comparison.a.name}`"
    if found.verdict == EQUIVALENT:
        said = f"{names} are equivalent"
    elif found.verdict == NOT_DECIDED:
        said = f"Not decided whether {names} are equivalent"
    else:
        said = f"{names} are not equivalent"
    margin = f"within ±{found.within:g} {comparison.measure.unit} over {comparison.basis}"
    return f"{said} {margin} ({100 * found.confidence:.4g} % interval {interval(found)})."


def power_line(comparison: Comparison, confidence: float) -> str:
    """Return what other numbers of seeds would show on one line, "" if it is unknown."""
    is_of_pairs, differences = detectable_by_seeds(comparison, confidence)
    if not differences:
        return ""
    assumed = "" if is_of_pairs else ", if seeds move both sides independently"
    unit = "pairs of equal seeds" if is_of_pairs else "seeds of each side"
    shown = f"Would be shown in about {100 * POWER:g} % of cases{assumed}"
    return f"{shown}: a difference of {by_count(differences, unit)}."


def by_count(differences: dict[int, float], unit: str) -> str:
    """Return differences by the number of units that show them: "0.0123 with 2 seeds, 0.0071 with 3"."""
    first, *others = differences.items()
    texts = [f"{first[1]:.4f} with {first[0]} {unit}"]
    texts += [f"{difference:.4f} with {count}" for count, difference in others]
    return ", ".join(texts)


def p_text(found: Estimate) -> str:
    """Return the p-value of an estimate as text, with ≤ or < where only a limit is known."""
    if found.p_value is None:
        return ""
    if found.p_is_bound:
        return f"≤ {found.p_value:.2g}"
    return "< 0.0001" if found.p_value < 1e-4 else f"{found.p_value:.2g}"


class Note(NamedTuple):
    """A kind, which docs/json.md lists, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(comparison: Comparison) -> list[Note]:
    """Return the warnings that follow from the losses."""
    a = comparison.a
    b = comparison.b
    if comparison.is_same_run:
        text = f"`{b.name}` and `{a.name}` are the same run: parameters, code, data and losses are equal."
        return [Note("same_run", text)]
    notes = []

    # What makes the interval over seeds impossible.
    if comparison.is_of_one_configuration:
        text = "Seeds: the configuration is the same, so this difference comes from the seed or the machine."
        notes.append(Note("same_configuration", text))
    elif single := " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1):
        text = (
            f"Seeds: only one run of {single} counts, so this compares trained models, not configurations. "
            "Run more seeds."
        )
        notes.append(Note("single_runs", text))

    # What makes the interval over documents too narrow.
    number = len(comparison.sizes)
    effective = effective_documents(comparison.sizes)
    if number == 1:
        text = "There is one document, so nothing is known about other text: only seeds can decide."
        notes.append(Note("few_documents", text))
    elif effective < FEW_DOCUMENTS:
        text = (
            f"Few documents: the {number} count like {effective:.0f} of equal length, so the interval may be too "
            "narrow. Evaluate on more text."
        )
        notes.append(Note("few_documents", text))
    for name, fraction, without in dominating(comparison):
        text = f"Document {name} has {100 * fraction:.0f} % of the bytes; without it, Δ is {without:+.4f}."
        notes.append(Note("dominating_document", text))
    correlation = size_correlation(comparison.changes, comparison.sizes)
    if correlation is not None:
        text = (
            f"Δ depends on the length of a document (correlation with log bytes {correlation:+.2f}), so it is valid "
            "only for text of similar lengths."
        )
        notes.append(Note("depends_on_length", text))
    return notes


def dominating(comparison: Comparison) -> list[tuple[str, float, float]]:
    """Return the name of each document with a large fraction of the bytes, that fraction, and Δ without it."""
    sizes = comparison.sizes
    changes = comparison.changes
    found = []
    for i, fraction in dominating_documents(sizes).items():
        if fraction < 1:
            without = float((changes.sum() - changes[i]) / (sizes.sum() - sizes[i]))
            found.append((comparison.a.runs[0].name_of_document(i), fraction, without))
    return found


def size_correlation(values: np.ndarray, sizes: np.ndarray) -> float | None:
    """Return the correlation of the rates values / sizes (N,) with the log of the sizes, if it is one to warn of."""
    keep = sizes > 0
    rates = values[keep] / sizes[keep]
    logs = np.log(sizes[keep])
    if len(rates) <= 2 or not rates.std() or not logs.std():
        return None
    correlation = float(np.corrcoef(rates, logs)[0, 1])
    return correlation if abs(correlation) > max(CORRELATED, 2 / math.sqrt(len(rates))) else None
