"""The few lines that a terminal shows after the answer of a comparison of recorded runs."""

from collections.abc import Mapping

from evidence.answer import SAID, answers, basis_sentence, power_line
from evidence.difference import NOT_SHOWN, SEEDS, Comparison, Comparisons
from evidence.runs import Group
from tools.common.paths import RAW, TOKENIZER, TRAIN
from tools.common.runs import Facts
from tools.compare.facts import different_inputs, different_parameters, notes_of

MOST_LINES = 10  # after the answer
NAMED = 4  # things that differ
MADE = (str(RAW), str(TOKENIZER), str(TRAIN.parent))  # beginnings of the paths of what stages make
MISLEADING = ("lossy_tokenizer", "other_context", "validation_loss")  # kinds of notes that come first


def difference_line(comparison: Comparison, facts: Mapping[str, Facts]) -> str:
    """Return the first NAMED parameters, with the values of A and B, and inputs that differ.

    What stages made from other parameters or code differs too, and is named only if nothing else differs.
    """
    a = comparison.a
    b = comparison.b
    texts = [f"{name} {of_a} → {of_b}" for name, of_a, of_b in different_parameters(a, b, facts)]
    made = []
    for path, files, *_ in different_inputs(a, b, facts):
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


def needs_seeds(comparison: Comparison, confidence: float) -> bool:
    """Return whether more seeds of the sides could change what is known: no difference over seeds was shown yet."""
    if comparison.is_of_one_configuration:
        return False
    return comparison.basis != SEEDS or comparison.verdict(comparison.deciding, confidence) == NOT_SHOWN


def summary(found: Comparisons, facts: Mapping[str, Facts], commands: list[str], unfinished: str) -> list[str]:
    """Return the answers, and at most MOST_LINES lines with what a reader needs first; the report has the rest.

    A part that does not fit is left out as a whole, and named.
    """
    blocks: list[tuple[str, list[str]]] = []
    if unfinished:
        blocks.append(("unfinished runs", [f"{unfinished}."]))
    others = [each for each in found.corrected if not each.is_same_run]
    notes = [note for each in others for note in notes_of(each, facts)]
    misleading = dict.fromkeys(note.text for note in notes if note.kind in MISLEADING)
    blocks.append(("warnings", list(misleading)))
    blocks.append(("what differs", [difference_line(each, facts) for each in others]))
    blocks.append(("the meaning of the verdict", list(dict.fromkeys(map(basis_sentence, others)))))
    power = dict.fromkeys(power_line(each, found.confidence) for each in others)
    blocks.append(("what more seeds could show", [line for line in power if line]))
    blocks.append(("the commands for more seeds", ["To run the missing seeds:", *commands] if commands else []))
    unsaid = dict.fromkeys(note.text for note in notes if note.kind not in (*MISLEADING, *SAID))
    blocks += [("warnings", [text]) for text in unsaid]

    lines = answers(found)
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
            whole = comparison.sides.whole_a, comparison.sides.whole_b
            sides += [side for side in whole if side not in sides]
    return sides
