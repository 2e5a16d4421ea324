"""Runs of this repository, and what differs between them beside their losses."""

import dataclasses
import json
from collections.abc import Mapping

from evidence.runs import Group, LossRun

SEED = "train.seed"
ABSENT = "(none)"
CODE = ("src/", "requirements.txt")  # inputs that two runs with the same bits may differ in


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run(LossRun):
    """A run that DVC recorded."""

    params: dict[str, object]  # by dotted name
    inputs: dict[str, str]  # path → hash of the data and code that the stages read
    tokens_seen: int
    best_tokens_seen: int  # by the best model
    num_parameters: int
    train_seconds: float | None  # None: not trained on this machine
    validations: list[dict[str, str]]  # rows of plots/validation.csv as text by column
    is_lossy: bool = False  # whether the tokenizer changes the validation text
    num_earlier_looks: int = 0  # at the test split, for other weights, when this run was recorded
    code: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)  # folder → file → md5, if known

    @property
    def configuration(self) -> str:
        """Return everything that made the run except its seed, as one comparable string."""
        return configuration(self.params, self.inputs)

    @property
    def data(self) -> dict[str, str]:
        """Return the inputs without code."""
        return {path: md5 for path, md5 in self.inputs.items() if not path.startswith(CODE)}


def configuration(params: Mapping[str, object], inputs: Mapping[str, str]) -> str:
    """Return parameters except the seed, and inputs, as one comparable string."""
    others = {name: value for name, value in params.items() if name != SEED}
    return json.dumps([others, dict(inputs)], sort_keys=True)


def what_differs(a: Group[Run], b: Group[Run]) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B) of parameters and inputs that differ."""
    rows = different_parameters(a, b)
    for path, files, md5, other_md5 in different_inputs(a, b):
        name = f"{path}: {', '.join(files)}" if files else path
        rows.append((name, md5[:10], other_md5[:10]))
    return rows


def different_parameters(a: Group[Run], b: Group[Run]) -> list[tuple[str, object, object]]:
    """Return rows (name, value of A, value of B); the seed only between two single runs, as a group has several."""
    rows = different_entries(a.runs[0].params, b.runs[0].params)
    if len(a.runs) + len(b.runs) > 2:
        rows = [row for row in rows if row[0] != SEED]
    return rows


def different_inputs(a: Group[Run], b: Group[Run]) -> list[tuple[str, list[str], str, str]]:
    """Return rows (path, files of a folder of code that differ, md5 of A, md5 of B) of code and data."""
    first = a.runs[0]
    other = b.runs[0]
    rows = []
    for path, md5, other_md5 in different_entries(first.inputs, other.inputs):
        files = changed_files(first.code.get(path, {}), other.code.get(path, {}))
        rows.append((path, files, str(md5), str(other_md5)))
    return rows


def changed_files(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the names of the files that two versions of a folder do not share; [] if one of them is not known."""
    if not a or not b:
        return []
    return [name for name, *_ in different_entries(a, b)]


def different_entries(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return rows (name, value in A, value in B) of the entries that differ, by name."""
    rows = [(name, a.get(name, ABSENT), b.get(name, ABSENT)) for name in sorted(a.keys() | b.keys())]
    return [row for row in rows if row[1] != row[2]]


def same_until(a: Run, b: Run) -> str | None:
    """Say until which validation two runs of equal parameters and data had the same bits, and what differs then.

    Return None for other runs, and without recorded digests of the checkpoints.
    """
    digest = "checkpoint_digest"
    have_digests = all(run.validations and all(row.get(digest) for row in run.validations) for run in (a, b))
    if not have_digests or a.params != b.params or a.data != b.data:
        return None
    until = "different from step 0 on"
    for x, y in zip(a.validations, b.validations, strict=False):
        if x != y:
            losses = f"validation losses {x['val_loss']} and {y['val_loss']}"
            if x[digest] == y[digest]:
                cause = "the machine" if a.inputs == b.inputs else "the code"
                return f"equal weights at step {x['step']} (digest {x[digest]}), other {losses}: {cause} differs"
            return f"{until}; step {x['step']} has the {losses}, digests {x[digest]} and {y[digest]}"
        until = f"identical until step {x['step']}"
    if len(a.validations) == len(b.validations):
        return "identical"
    shorter = min(a, b, key=lambda run: len(run.validations))
    return f"{until}, the last validation of `{shorter.name}`"
