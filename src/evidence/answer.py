"""The answer of a comparison: a sentence to quote, and the sentences that say what it means."""

from collections.abc import Sequence

from evidence.comparison import (
    EQUIVALENT,
    NOT_DECIDED,
    NOT_SHOWN,
    SEEDS,
    Comparison,
    Equivalence,
    detectable_by_seeds,
)
from evidence.comparisons import Comparisons
from evidence.differences import p_text
from evidence.intervals import Estimate
from evidence.notes import notes_of
from evidence.power import POWER
from evidence.runs import Group, Run

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
