"""The lines that `compare` prints about recorded runs."""

from collections.abc import Mapping, Sequence

from evidence.answer import answers, explanations
from evidence.difference import NOT_SHOWN, SEEDS, Comparisons, Difference
from evidence.runs import Group
from tools.compare.facts import as_in_yaml, different_inputs, different_parameters, notes_of
from tools.record.paths import RAW, TOKENIZER, TRAIN, VALIDATION_SIDECAR
from tools.record.revision import Revision
from tools.record.run import Facts

NAMED = 4  # differences that are named
DIGITS = 12  # of a commit, and of a hash
MADE = (str(RAW), str(TOKENIZER), str(TRAIN.parent))  # beginnings of paths that stages make


def difference_line(found: Difference, facts: Mapping[str, Facts]) -> str:
    """Return the first NAMED parameters, with the values of A and B, and inputs that differ.

    Outputs of stages with other parameters or code differ too; they are named only if nothing else differs.
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
    """Return the lines of the answers, the most important first."""
    differences = found.differences
    lines = [*answers(found), unfinished]
    lines += [note.text for each in differences for note in notes_of(each, facts)]
    for each in differences:
        line = difference_line(each, facts)
        lines.append(f"`{each.b.name}`: {line}" if differences[1:] else line)
    lines += explanations(found)
    if commands:
        lines += ["To run the missing seeds:", *commands]
    return [line for line in dict.fromkeys(lines) if line]


def groups_to_extend(found: Comparisons) -> list[Group]:
    """Return the groups that need more seeds, each once, with the runs that are left out.

    More seeds do not help between two machines, or after a difference over seeds is shown. A single group always needs
    them.
    """
    if not found.differences:
        return found.groups
    sides: list[Group] = []
    for each in found.differences:
        is_shown = each.basis == SEEDS and each.verdict != NOT_SHOWN
        is_of_machines = each.a.runs[0].configuration == each.b.runs[0].configuration
        if not is_of_machines and not is_shown:
            whole = each.whole_a, each.whole_b
            sides += [side for side in whole if side not in sides]
    return sides


def documents_and_code(revisions: Sequence[Revision]) -> tuple[str, str]:
    """Return what a citation says of the text and of the code that the figures are of."""
    source = revisions[0].read_json(VALIDATION_SIDECAR)["source"]
    commits = dict.fromkeys(revision.origin[:DIGITS] for revision in revisions)
    text = f"Text: SHA-256 {source['text_sha256'][:DIGITS]}"
    return f" of {source['name']}", f" {text}. The runs started from {', '.join(commits)}."
