"""A comparison as a thesis or a paper quotes it: a sentence for each difference, and a table with its caption."""

from collections.abc import Mapping
from typing import NamedTuple

from evidence.answer import interval, left_out_text, p_text, seeds_text
from evidence.difference import NOT_SHOWN, Comparison, Comparisons
from evidence.runs import Group
from tools.common.parameters import Difference
from tools.common.reports import table
from tools.common.runs import Facts
from tools.compare.answer import difference_line

COLUMNS = ["run", "seeds", "bits per byte", "difference", "interval over documents", "interval over seeds", "p"]


class Origin(NamedTuple):
    """What the losses are of."""

    source: str
    text_sha256: str
    commits: list[str]  # of the code and the parameters
    changes: list[Difference]  # parameters that the first run does not have from the first commit, except the seed


def citation(found: Comparisons, facts: Mapping[str, Facts], origin: Origin) -> list[str]:
    """Return the lines to copy, as Markdown, or [] if nothing is compared with the baseline."""
    comparisons = [each for each in found.corrected if not each.is_same_run]
    if not comparisons:
        return []
    first = comparisons[0]
    percent = percent_of(found.confidence)
    text = f"{len(first.sizes):,} validation documents ({int(first.sizes.sum()):,} bytes) of {origin.source}"
    where = f"Text: SHA-256 {origin.text_sha256[:12]}. {made_by(first.sides.whole_a, origin)}"
    sentences = [sentence(each, facts, found.confidence, text) for each in comparisons]
    rows = [row(first.sides.whole_a, None), *(row(each.b, each) for each in comparisons)]
    several = f" p is after Holm's correction for {len(found.corrected)} comparisons." if found.corrected[1:] else ""
    caption = (
        f"Bits per byte on {text}; lower is better. Differences are to `{first.a.name}`. The {percent} intervals over "
        "documents (smoothed studentized bootstrap) cover the choice of documents for these models, those over seeds "
        "(of pairs of equal seeds, or Welch 1947) the choice of seeds for these documents; ± is the standard deviation "
        f"over seeds, and p that of the interval that decides.{several} {where}"
    )
    return [*sentences, where, "", *table(COLUMNS, rows), f"Table: {caption}"]


def made_by(baseline: Group, origin: Origin) -> str:
    """Return which code and parameters the baseline has; what the others change is in their sentences."""
    named = ", ".join(origin.commits)
    commits = f"commit {named}" if len(origin.commits) == 1 else f"commits {named}"
    changes = ", ".join(f"{each.name} {each.now} instead of {each.committed}" for each in origin.changes)
    return f"Code and parameters: {commits}{f'; `{baseline.name}` has {changes}' if changes else ''}."


def sentence(comparison: Comparison, facts: Mapping[str, Facts], confidence: float, text: str) -> str:
    """Return the difference with its verdict, both intervals, and what differs."""
    found = comparison.verdict(comparison.deciding, confidence)
    verdict = "no difference was shown" if found == NOT_SHOWN else found
    percent = percent_of(confidence)
    before, after = (float(side.scores.mean()) for side in (comparison.a, comparison.b))
    return (
        f"On {text}, `{comparison.a.name}` has {before:.4f} and `{comparison.b.name}` {after:.4f} bits per byte: a "
        f"difference of {comparison.documents.value:+.4f} ({verdict}). Its {percent} interval over documents is "
        f"{interval(comparison.documents)}, and over seeds {interval(comparison.seeds)} ({seeds_text(comparison)}). "
        f"The interval over {comparison.basis} decides.{left_out_text(comparison)} {difference_line(comparison, facts)}"
    )


def percent_of(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def row(group: Group, comparison: Comparison | None) -> list[object]:
    """Return the cells of COLUMNS for a group; `comparison` is None for the baseline."""
    deviation = f" ± {group.scores.std(ddof=1):.4f}" if len(group.runs) > 1 else ""
    cells = [group.name, len(group.runs), f"{group.scores.mean():.4f}{deviation}"]
    if comparison is None:
        return [*cells, "–", "–", "–", "–"]
    p = "unknown" if comparison.deciding.p_value is None else p_text(comparison.deciding)
    difference = f"{comparison.documents.value:+.4f}"
    return [*cells, difference, interval(comparison.documents), interval(comparison.seeds), p]
