"""What limits a comparison: warnings, each of a kind that programs can test, as a sentence for people."""

from typing import NamedTuple

from evidence.comparison import Comparison
from evidence.differences import size_correlation
from evidence.intervals import dominating_documents, effective_documents

FEW_DOCUMENTS = 30  # effective number below which the report warns


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
