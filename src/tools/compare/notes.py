"""What limits a comparison: warnings, each of a kind that programs can test, as a sentence for people."""

from typing import NamedTuple

from lm.evaluate.intervals import dominating_documents, effective_documents
from lm.tokens.tokenfile import LOSSY
from tools.common.runs import Comparison, different_parameters
from tools.common.statistics import size_correlation

SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
FEW_DOCUMENTS = 30  # effective number below which the report warns


class Note(NamedTuple):
    """A kind, which docs/json.md lists, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(comparison: Comparison) -> list[Note]:
    """Return the warnings of a comparison."""
    a = comparison.a
    b = comparison.b
    notes = []

    # What makes the values of both sides incomparable.
    for group in (a, b):
        if any(run.is_lossy for run in group.runs):
            notes.append(
                Note("lossy_tokenizer", f"`{group.name}`: {LOSSY}, so a lower value does not mean a better model.")
            )
    scoring = sorted({name for name, *_ in different_parameters(a, b)} & SCORED_BY)
    for name in scoring:
        notes.append(Note("other_context", f"`{name}` differs: the two were scored with different context."))

    # What makes a score on the test split one that was chosen.
    for group in (a, b):
        looks = max(run.num_earlier_looks for run in group.runs)
        if looks:
            found = f"`{group.name}` was run after other models were scored on the test split"
            text = f"{found} ({looks} looks in test_reads.csv), and may have been chosen by them."
            notes.append(Note("after_test_reads", text))

    # What makes the interval over seeds impossible.
    if has_same_configuration(comparison):
        text = "Seeds: the configuration is the same, so this difference comes from the seed or the machine."
        notes.append(Note("same_configuration", text))
    elif single := " and ".join(f"`{group.name}`" for group in (a, b) if len(group.runs) == 1):
        text = (
            f"Seeds: there is only one run of {single}, so this compares trained models, not configurations. "
            "Run more seeds."
        )
        notes.append(Note("single_runs", text))

    # What makes the interval over documents too narrow.
    number = len(comparison.sizes)
    effective = effective_documents(comparison.sizes)
    if effective < FEW_DOCUMENTS:
        text = (
            f"Few documents: the {number} count like {effective:.0f} of equal length, so the interval may be too "
            "narrow. Evaluate on more text."
        )
        notes.append(Note("few_documents", text))
    for i, fraction, without in dominating(comparison):
        text = f"Document {i} has {100 * fraction:.0f} % of the bytes; without it, Δ is {without:+.4f}."
        notes.append(Note("dominating_document", text))
    correlation = size_correlation(comparison.bits, comparison.sizes)
    if correlation is not None:
        text = (
            f"Δ depends on the length of a document (correlation with log bytes {correlation:+.2f}), so it is valid "
            "only for text of similar lengths."
        )
        notes.append(Note("depends_on_length", text))
    return notes


def has_same_configuration(comparison: Comparison) -> bool:
    """Return whether both sides are runs of one configuration."""
    return comparison.a.runs[0].configuration == comparison.b.runs[0].configuration


def dominating(comparison: Comparison) -> list[tuple[int, float, float]]:
    """Return the number of each document with a large fraction of the bytes, that fraction, and Δ without it."""
    sizes = comparison.sizes
    bits = comparison.bits
    found = []
    for i, fraction in dominating_documents(sizes).items():
        if fraction < 1:
            without = float((bits.sum() - bits[i]) / (sizes.sum() - sizes[i]))
            found.append((i, fraction, without))
    return found
