"""The differences of recorded runs besides their losses, and the warnings that follow from them.

`facts` maps the name of each run to its facts (`read_runs`).
"""

from collections.abc import Mapping

import numpy as np

from evidence.answer import Note
from evidence.difference import Difference
from evidence.runs import Group
from lm.tokens.tokenfile import LOSSY
from tools.record.parameters import Difference as Changed
from tools.record.parameters import differences
from tools.record.paths import TOKENIZER
from tools.record.run import DIGEST, SEED, Facts

SCORED_BY = {"eval.stride_fraction", "train.seq_len", "train.attend_across_documents"}  # decide the context of a token
VALIDATED_BY = {"train.seq_len", "train.eval_tokens", "train.attend_across_documents"}  # decide the tokens of val_loss


def as_in_yaml(value: object) -> str:
    return "null" if value is None else str(value)


def different_parameters(a: Group, b: Group, facts: Mapping[str, Facts]) -> list[Changed]:
    """Return rows (name, value of A, value of B); the seed only between two single runs, as a group has several."""
    rows = sorted(differences(facts[a.runs[0].name].params, facts[b.runs[0].name].params))
    if len(a.runs) + len(b.runs) > 2:
        rows = [row for row in rows if row.name != SEED]
    return rows


def different_inputs(a: Group, b: Group, facts: Mapping[str, Facts]) -> list[tuple[str, list[str], str, str]]:
    """Return rows (path, changed files of a folder of code, md5 of A, md5 of B) of code and data."""
    first = facts[a.runs[0].name]
    other = facts[b.runs[0].name]
    rows = []
    for path, md5, other_md5 in sorted(differences(first.inputs, other.inputs)):
        files = changed_files(first.code.get(path, {}), other.code.get(path, {}))
        rows.append((path, files, str(md5), str(other_md5)))
    return rows


def changed_files(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the names of the files that two versions of a folder do not share; [] if one of them is not known."""
    if not a or not b:
        return []
    return sorted(each.name for each in differences(a, b))


def same_until(a: Facts, b: Facts) -> int | None:
    """Return the step of the last validation until which two runs had the same bits; None if the first one differs.

    Return None too without recorded digests of the checkpoints.
    """
    last = None
    for row, other in zip(a.validations, b.validations, strict=False):
        if row != other or not row.get(DIGEST):
            break
        last = int(row["step"])
    return last


def notes_of(comparison: Difference, facts: Mapping[str, Facts]) -> list[Note]:
    """Return the warnings that do not follow from the losses."""
    a = comparison.a
    b = comparison.b
    warnings = []

    # Warn if the values of both sides are not comparable.
    for group in (a, b):
        if any(facts[run.name].is_lossy for run in group.runs):
            warnings.append(
                Note("lossy_tokenizer", f"`{group.name}`: {LOSSY}, so a lower value does not mean a better model.")
            )
    scoring = sorted({name for name, *_ in different_parameters(a, b, facts)} & SCORED_BY)
    for name in scoring:
        warnings.append(Note("other_context", f"`{name}` differs: the two were scored with different context."))

    if other_way := validation_points_the_other_way(comparison, facts):
        warnings.append(Note("validation_loss", other_way))

    # Warn if a run starts from a model that has seen validation text.
    for group in (a, b):
        for seen in sorted({facts[run.name].seen for run in group.runs} - {""}):
            warnings.append(Note("seen_by_start", f"`{group.name}`: {seen}."))

    # Warn if earlier evaluations on the test split may have chosen a run.
    for group in (a, b):
        evaluations = max(facts[run.name].num_earlier_evaluations for run in group.runs)
        if evaluations:
            found = f"`{group.name}` was run after other models were scored on the test split"
            text = f"{found} ({evaluations} evaluations in test_reads.csv), and may have been chosen by them."
            warnings.append(Note("after_test_reads", text))

    return warnings


def validation_points_the_other_way(comparison: Difference, facts: Mapping[str, Facts]) -> str:
    """Return a sentence if the validation losses fall where bits per byte rise, or the reverse; else ""."""
    before = lowest_validation(comparison.a, facts)
    after = lowest_validation(comparison.b, facts)
    if before is None or after is None or (after - before) * comparison.documents.value >= 0:
        return ""
    inputs = [path for path, *_ in different_inputs(comparison.a, comparison.b, facts)]
    names = sorted({name for name, *_ in different_parameters(comparison.a, comparison.b, facts)} & VALIDATED_BY)
    if str(TOKENIZER) in inputs:
        why = "the tokens of the two hold different text"
    elif names:
        why = f"`{'`, `'.join(names)}` changes which tokens it covers, and their context"
    else:
        why = "it covers only some of the tokens"
    return (
        f"The validation loss points the other way ({before:.4f} → {after:.4f} nats per token): {why}. "
        "Bits per byte cover the whole text."
    )


def lowest_validation(group: Group, facts: Mapping[str, Facts]) -> float | None:
    """Return the lowest validation loss of a run in nats per token, the mean over the runs; None if one is unknown."""
    curves = [facts[run.name].validations for run in group.runs]
    if not all(curves):
        return None
    return float(np.mean([min(float(row["val_loss"]) for row in curve) for curve in curves]))
