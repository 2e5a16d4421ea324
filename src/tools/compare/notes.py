"""Warnings of a comparison that follow from parameters, code and data; those of the losses are evidence's."""

import numpy as np

from evidence import notes
from evidence.comparison import Comparison
from evidence.notes import Note
from evidence.runs import Group
from lm.tokens.tokenfile import LOSSY
from tools.common.paths import TOKENIZER
from tools.common.runs import Run
from tools.compare.differences import different_inputs, different_parameters

SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # the context of a token
VALIDATED_BY = {"train.seq_len", "train.eval_tokens", "train.attend_across_documents"}  # what val_loss is of


def notes_of(comparison: Comparison[Run]) -> list[Note]:
    """Return the warnings of a comparison."""
    of_losses = notes.notes_of(comparison)
    return of_losses if comparison.is_same_run else notes_of_records(comparison) + of_losses


def notes_of_records(comparison: Comparison[Run]) -> list[Note]:
    """Return the warnings that do not follow from the losses."""
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

    if other_way := validation_points_the_other_way(comparison):
        notes.append(Note("validation_loss", other_way))

    # What makes a score on the test split one that was chosen.
    for group in (a, b):
        looks = max(run.num_earlier_looks for run in group.runs)
        if looks:
            found = f"`{group.name}` was run after other models were scored on the test split"
            text = f"{found} ({looks} looks in test_reads.csv), and may have been chosen by them."
            notes.append(Note("after_test_reads", text))

    return notes


def validation_points_the_other_way(comparison: Comparison[Run]) -> str:
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


def lowest_validation(group: Group[Run]) -> float | None:
    """Return the lowest validation loss of a run in nats per token, the mean over the runs; None if one is unknown."""
    if not all(run.validations for run in group.runs):
        return None
    return float(np.mean([min(float(row["val_loss"]) for row in run.validations) for run in group.runs]))
