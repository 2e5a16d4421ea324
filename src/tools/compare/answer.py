"""The answer of a comparison: a sentence to quote, and the few lines that a terminal shows after it."""

from evidence.intervals import Estimate
from evidence.statistics import LEAST_SEEDS, POWER, detectable_by_runs, p_text
from tools.common.paths import RAW, TOKENIZER, TRAIN
from tools.common.runs import (
    NOT_SHOWN,
    SEEDS,
    Comparison,
    Group,
    different_inputs,
    different_parameters,
    pooled_deviation,
    verdict,
)
from tools.compare.notes import has_same_configuration, is_same_run, notes_of

MOST_LINES = 10  # after the answer
NAMED = 4  # things that differ
MADE = (str(RAW), str(TOKENIZER), str(TRAIN.parent))  # beginnings of the paths of what stages make
MISLEADING = ("lossy_tokenizer", "other_context", "validation_loss")  # kinds of notes that come first
SAID = ("same_configuration", "single_runs")  # kinds of notes that `basis_sentence` says
RUNS_OF_EACH_SIDE = (2, 3, 5, 10)


def answer(comparison: Comparison, num_comparisons: int, confidence: float) -> str:
    """Return the verdict in one sentence: the difference, its intervals, and how many seeds and documents they have.

    The interval that decides comes first. p is corrected for the number of comparisons.
    """
    if is_same_run(comparison):
        (note,) = notes_of(comparison)
        return note.text
    a = comparison.a
    b = comparison.b
    over_documents = f"over {len(comparison.sizes):,} documents {interval(comparison.documents)}"
    over_seeds = f"over {seeds_text(comparison)} {interval(comparison.seeds)}"
    is_over_seeds = comparison.basis == SEEDS
    intervals = [over_seeds, over_documents] if is_over_seeds else [over_documents]
    intervals[0] += p_phrase(comparison.deciding, num_comparisons)
    if not is_over_seeds:
        intervals.append(f"over seeds unknown, {seeds_text(comparison)}")

    found = verdict(comparison.deciding, confidence)
    model = "" if is_over_seeds else "the model "
    if found == NOT_SHOWN:
        said = f"No difference was shown between {model}`{b.name}` and {model}`{a.name}`"
    else:
        said = f"{model}`{b.name}` is {found} than {model}`{a.name}`"
        said = said[0].upper() + said[1:]
    delta = f"{comparison.documents.value:+.4f} bits per byte"
    return f"{said}: {delta} ({100 * confidence:g} % interval {'; '.join(intervals)})."


def interval(found: Estimate) -> str:
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
    """Return how many seeds each side has: "5 and 3 seeds"."""
    of_a = len(comparison.a.runs)
    of_b = len(comparison.b.runs)
    return "1 seed of each side" if of_a == of_b == 1 else f"{of_a} and {of_b} seeds"


def basis_sentence(comparison: Comparison) -> str:
    """Return a sentence that says of what the verdict is true."""
    if has_same_configuration(comparison):
        return "The configuration is the same, so the difference comes from the seed or the machine."
    if comparison.basis == SEEDS:
        return "Judged over seeds: the verdict is about the two configurations, on these documents."
    return "Judged over documents: the verdict is about these trained models. Other seeds may give another one."


def difference_line(comparison: Comparison) -> str:
    """Return the first NAMED parameters, with the values of A and B, and inputs that differ.

    What stages made from other parameters or code differs too, and is named only if nothing else differs.
    """
    a = comparison.a
    b = comparison.b
    texts = [f"{name} {of_a} → {of_b}" for name, of_a, of_b in different_parameters(a, b)]
    made = []
    for path, files, *_ in different_inputs(a, b):
        names = [f"{path}/{file}" for file in files] or [path]
        if path.startswith(MADE):
            made += names
        else:
            texts += names
    texts = texts or made
    if not texts:
        return "Differs: nothing in dvc.lock; only the machine can differ."
    more = f", and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    return f"Differs: {', '.join(texts[:NAMED])}{more}."


def detectable_by_seeds(comparison: Comparison, confidence: float) -> dict[int, float] | None:
    """Return runs of each side → the smallest difference that they would show; None with fewer than LEAST_SEEDS seeds.

    The noise is the deviation over seeds, pooled over the sides with LEAST_SEEDS or more.
    """
    if has_same_configuration(comparison):
        return None
    sides = [comparison.a, comparison.b]
    noise = pooled_deviation(sides)
    if noise is None:
        return None
    df = sum(len(side.runs) - 1 for side in sides if len(side.runs) >= LEAST_SEEDS)
    return {runs: detectable_by_runs(noise, df, runs, confidence) for runs in RUNS_OF_EACH_SIDE}


def power_line(detectable: dict[int, float]) -> str:
    """Return `detectable_by_seeds` on one line."""
    first, *others = detectable.items()
    texts = [f"{first[1]:.4f} with {first[0]} seeds of each side"]
    texts += [f"{difference:.4f} with {runs}" for runs, difference in others]
    return f"Would be shown in about {100 * POWER:g} % of cases: a difference of {', '.join(texts)}."


def needs_seeds(comparison: Comparison, confidence: float) -> bool:
    """Return whether more seeds of the sides could change what is known: no difference over seeds was shown yet."""
    if has_same_configuration(comparison):
        return False
    return comparison.basis != SEEDS or verdict(comparison.deciding, confidence) == NOT_SHOWN


def summary(comparisons: list[Comparison], commands: list[str], unfinished: str, confidence: float) -> list[str]:
    """Return the answers, and at most MOST_LINES lines with what a reader needs first; the report has the rest.

    A part that does not fit is left out as a whole, and named.
    """
    blocks: list[tuple[str, list[str]]] = []
    if unfinished:
        blocks.append(("unfinished runs", [f"{unfinished}."]))
    others = [each for each in comparisons if not is_same_run(each)]
    notes = [note for each in others for note in notes_of(each)]
    misleading = dict.fromkeys(note.text for note in notes if note.kind in MISLEADING)
    blocks.append(("warnings", list(misleading)))
    blocks.append(("what differs", [difference_line(each) for each in others]))
    blocks.append(("the meaning of the verdict", list(dict.fromkeys(map(basis_sentence, others)))))
    noise = [detectable_by_seeds(each, confidence) for each in others]
    blocks.append(("what more seeds could show", list(dict.fromkeys(power_line(each) for each in noise if each))))
    blocks.append(("the commands for more seeds", ["To run the missing seeds:", *commands] if commands else []))
    unsaid = dict.fromkeys(note.text for note in notes if note.kind not in (*MISLEADING, *SAID))
    blocks += [("warnings", [text]) for text in unsaid]

    lines = [answer(each, len(comparisons), confidence) for each in comparisons]
    budget = MOST_LINES - 1
    left_out = []
    for name, block in blocks:
        if len(block) <= budget:
            lines += block
            budget -= len(block)
        else:
            left_out.append(name)
    if left_out:
        lines.append(f"The report has more: {', '.join(dict.fromkeys(left_out))}.")
    return lines


def groups_to_extend(comparisons: list[Comparison], confidence: float) -> list[Group]:
    """Return the sides of which more seeds are needed, each once, in the order of the comparisons."""
    sides: list[Group] = []
    for comparison in comparisons:
        if needs_seeds(comparison, confidence):
            sides += [side for side in (comparison.a, comparison.b) if side not in sides]
    return sides
