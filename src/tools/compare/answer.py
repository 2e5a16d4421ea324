"""What a terminal shows of a comparison of recorded runs."""

from collections.abc import Mapping
from typing import NamedTuple

from evidence.answer import SAID, answers, basis_sentence, citation, power_line
from evidence.difference import NOT_SHOWN, SEEDS, Comparisons, Difference
from evidence.runs import Group
from tools.compare.facts import as_in_yaml, different_inputs, different_parameters, notes_of
from tools.record.parameters import Difference as Changed
from tools.record.paths import RAW, TOKENIZER, TRAIN
from tools.record.run import Facts

NAMED = 4  # things that differ
MADE = (str(RAW), str(TOKENIZER), str(TRAIN.parent))  # beginnings of the paths of what stages make
MISLEADING = ("lossy_tokenizer", "other_context", "validation_loss")  # kinds of notes that come first


class Origin(NamedTuple):
    """What the losses are of."""

    source: str
    text_sha256: str
    commits: list[str]  # of the code and the parameters
    changes: list[Changed]  # parameters that the first run does not have from the first commit, except the seed


def difference_line(found: Difference, facts: Mapping[str, Facts]) -> str:
    """Return the first NAMED parameters, with the values of A and B, and inputs that differ.

    What stages made from other parameters or code differs too, and is named only if nothing else differs.
    """
    texts = []
    for name, of_a, of_b in different_parameters(found.a, found.b, facts):
        texts.append(f"{name} {as_in_yaml(of_a)} → {as_in_yaml(of_b)}")
    made = []
    for path, files, *_ in different_inputs(found.a, found.b, facts):
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


def summary(found: Comparisons, facts: Mapping[str, Facts], commands: list[str], unfinished: str) -> list[str]:
    """Return the answers, and what a reader needs to use them, the most important first."""
    differences = found.corrected
    notes = [note for each in differences for note in notes_of(each, facts)]
    lines = answers(found)
    lines += [unfinished] if unfinished else []
    lines += [note.text for note in notes if note.kind in MISLEADING]
    for each in differences:
        line = difference_line(each, facts)
        lines.append(f"`{each.b.name}`: {line}" if differences[1:] else line)
    lines += map(basis_sentence, differences)
    lines += [power_line(each, found.confidence) for each in differences]
    lines += ["To run the missing seeds:", *commands] if commands else []
    lines += [note.text for note in notes if note.kind not in (*MISLEADING, *SAID)]
    return [line for line in dict.fromkeys(lines) if line]


def groups_to_extend(found: Comparisons) -> list[Group]:
    """Return the groups of which more seeds are needed, each once, with the runs that are left out.

    More seeds change nothing between two machines, or if a difference over seeds is shown. A single group needs them.
    """
    if not found.corrected:
        return found.groups
    sides: list[Group] = []
    for each in found.corrected:
        is_shown = each.basis == SEEDS and each.verdict(each.deciding, found.confidence) != NOT_SHOWN
        if not each.is_of_one_configuration and not is_shown:
            whole = each.sides.whole_a, each.sides.whole_b
            sides += [side for side in whole if side not in sides]
    return sides


def cite(found: Comparisons, facts: Mapping[str, Facts], origin: Origin) -> list[str]:
    """Return the lines to copy, as Markdown, with the text and the code that the figures are of."""
    differs = [difference_line(each, facts) for each in found.corrected]
    where = f"Text: SHA-256 {origin.text_sha256[:12]}. {made_by(found.groups[0], origin)}"
    return citation(found, differs, f" of {origin.source}", where)


def made_by(baseline: Group, origin: Origin) -> str:
    """Return which code and parameters the baseline has; what the others change is in their sentences."""
    named = ", ".join(origin.commits)
    commits = f"commit {named}" if len(origin.commits) == 1 else f"commits {named}"
    texts = [f"{each.name} {as_in_yaml(each.now)} instead of {as_in_yaml(each.committed)}" for each in origin.changes]
    changes = ", ".join(texts)
    return f"Code and parameters: {commits}{f'; `{baseline.name}` has {changes}' if changes else ''}."
