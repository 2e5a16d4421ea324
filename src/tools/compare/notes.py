"""What limits a comparison: warnings, each of a kind that programs can test, as a sentence for people."""

from typing import NamedTuple

import numpy as np

from evidence.intervals import dominating_documents, effective_documents
from evidence.statistics import size_correlation
from lm.tokens.tokenfile import LOSSY
from tools.common.paths import TOKENIZER
from tools.common.runs import Comparison, Group, different_inputs, different_parameters

SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
VALIDATED_BY = {"train.seq_len", "train.eval_tokens", "train.attend_across_documents"}  # what val_loss is of
FEW_DOCUMENTS = 30  # effective number below which the report warns


class Note(NamedTuple):
    """A kind, which docs/json.md lists, and a sentence in Markdown."""

    kind: str
    text: str


def notes_of(comparison: Comparison) -> list[Note]:
    """Return the warnings of a comparison."""
    a = comparison.a
    b = comparison.b
    if is_same_run(comparison):
        text = f"`{b.name}` and `{a.name}` are the same run: parameters, code, data and losses are equal."
        return [Note("same_run", text)]
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

    if other_way := validation_points_the_other_way(comparison):
        notes.append(Note("validation_loss", other_way))

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


def validation_points_the_other_way(comparison: Comparison) -> str:
    """Return a sentence if the validation losses fall where bits per byte rise, or the reverse; else ""."""
    before = lowest_validation(comparison.a)
    after = lowest_validation(comparison.b)
    if before is None or after is None or (after - before) * comparison.documents.value >= 0:
        return ""
    inputs = [path for path, *_ in different_inputs(comparison.a, comparison.b)]
    names = sorted({name for name, *_ in different_parameters(comparison.a, comparison.b)} & VALIDATED_BY)
    if str(TOKENIZER) in inputs:
        why = "the tokens of the two hold different text"
    elif names:
        why = f"`{'`, `'.join(names)}` changes of which tokens it is, and with how much context"
    else:
        why = "it is of some of the tokens only"
    return (
        f"The validation loss points the other way ({before:.4f} → {after:.4f} nats per token): {why}. "
        "Bits per byte are of the whole text."
    )


def lowest_validation(group: Group) -> float | None:
    """Return the lowest validation loss of a run in nats per token, the mean over the runs; None if one is unknown."""
    if not all(run.validations for run in group.runs):
        return None
    return float(np.mean([min(float(row["val_loss"]) for row in run.validations) for run in group.runs]))


def is_same_run(comparison: Comparison) -> bool:
    """Return whether both sides are one run under two names, such as a branch and its commit."""
    if len(comparison.a.runs) + len(comparison.b.runs) > 2:
        return False
    a = comparison.a.runs[0]
    b = comparison.b.runs[0]
    return a.params == b.params and a.inputs == b.inputs and np.array_equal(a.nats, b.nats)


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
